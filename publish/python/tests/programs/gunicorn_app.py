"""An application for gunicorn. A request has a context of its own until its body is there: the response says at once
which process handles it.
"""

import json
import os

import otelctx
from truth import context


def app(environ, start_response):
    route = environ["PATH_INFO"]
    start_response("200 OK", [("Content-Type", "application/json")])
    with otelctx.scope(context(int(environ["QUERY_STRING"]), **{"http.route": route})):
        yield json.dumps({"pid": os.getpid()}).encode() + b"\n"
        yield environ["wsgi.input"].read(1)
