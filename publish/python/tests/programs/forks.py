"""Forks children, which show themselves as soon as `fork` has returned."""

import multiprocessing
import os
import sys

import otelctx
from truth import context, show, wait

if sys.argv[1] == "sdk":
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    resource = Resource.create({"service.name": "sdk"})
    trace.set_tracer_provider(TracerProvider(resource=resource))


def child():
    show(published=otelctx.visible_to_readers())
    wait()
    with otelctx.scope(context(3, **{"new.key": "x"})):
        show()
        wait()


otelctx.attach(context(1, **{"http.route": "/parent"}))
if sys.argv[1] == "multiprocessing":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
elif os.fork() == 0:
    child()
    os._exit(0)
else:
    os.wait()
show()
wait()
