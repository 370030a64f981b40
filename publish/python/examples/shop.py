"""A web shop: three routes, a thread for each request."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("shop")

ORDERS = [{"id": n, "items": [{"price": n * 7 % 100, "count": n % 5} for _ in range(20)]} for n in range(400)]
PICTURE = bytes(4_000_000)


def total(order):
    return sum(item["price"] * item["count"] for item in order["items"])


def report():
    rows = sorted(ORDERS, key=total, reverse=True)
    return json.dumps([{"id": order["id"], "total": total(order)} for order in rows])


def thumbnail():
    return hashlib.sha256(PICTURE).hexdigest()


def cart():
    return json.dumps(ORDERS[0])


ROUTES = {"/report": report, "/thumbnail": thumbnail, "/cart": cart}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        with tracer.start_as_current_span(self.path) as span:
            span.set_attribute("http.route", self.path)
            body = ROUTES[self.path]().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 8000), Handler)
    server.daemon_threads = True
    server.serve_forever()
