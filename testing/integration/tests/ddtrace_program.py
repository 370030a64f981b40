"""Publishes with ddtrace in two threads, prints what it published, and waits for the end of
standard input. One fact a line, its words separated by tabs."""

import os
import sys
import threading

os.environ.update(
    DD_SERVICE="billing",
    DD_ENV="test",
    DD_VERSION="1.2",
    DD_TRACE_AGENT_URL="unix:///nonexistent",
    DD_INSTRUMENTATION_TELEMETRY_ENABLED="false",
    DD_REMOTE_CONFIGURATION_ENABLED="false",
)

from ddtrace.trace import tracer  # noqa: E402  (reads the environment above)
from ddtrace.version import __version__  # noqa: E402

done = threading.Event()
printed = threading.Semaphore(0)


def work(name):
    with tracer.trace("web.request", resource=name) as root:
        with tracer.trace("db.query") as span:
            fact = (threading.get_native_id(), f"{span.trace_id:032x}", f"{span.span_id:016x}", f"{root.span_id:016x}")
            print("thread", *fact, sep="\t", flush=True)
            printed.release()
            done.wait()


for name in ("/pay", "/refund"):
    threading.Thread(target=work, args=(name,), daemon=True).start()
    printed.acquire()

for fact in (
    ("service.name", "billing"),
    ("deployment.environment.name", "test"),
    ("service.version", "1.2"),
    ("telemetry.sdk.language", "python"),
    ("telemetry.sdk.version", __version__),
):
    print("resource", *fact, sep="\t")
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
