"""A Flask service that asks itself. It has no code for OpenTelemetry, apart from the lines that say what is true."""

import json
import threading
import urllib.request

from flask import Flask
from opentelemetry import trace
from werkzeug.serving import make_server

app = Flask(__name__)


def show(**values):
    print(json.dumps(values), flush=True)
    # Until the test has read this process.
    input()


@app.route("/orders/<number>")
def order(number):
    ids = trace.get_current_span().get_span_context()
    show(
        tid=threading.get_native_id(),
        trace_id=f"{ids.trace_id:032x}",
        span_id=f"{ids.span_id:016x}",
        trace_flags=ids.trace_flags,
    )
    return f"order {number}"


server = make_server("127.0.0.1", 0, app)
threading.Thread(target=server.serve_forever, daemon=True).start()
with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/orders/7") as answer:
    show(answer=answer.read().decode())
