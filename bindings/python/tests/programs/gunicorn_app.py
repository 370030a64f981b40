"""An application for gunicorn. A request leaves its context attached, to be read afterwards."""

import json
import os

import otelctx
from truth import context


def app(environ, start_response):
    otelctx.attach(context(5, **{"http.route": environ["PATH_INFO"]}))
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"pid": os.getpid(), "published": otelctx.published()}).encode()]
