"""Suspended tasks with contexts. Prints the IDs of the tasks and what each publishes when it runs.

`sys.argv`: how many, and the module with the event loop.
"""

import asyncio
import contextvars
import importlib
import json
import sys

import otelctx

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
KEYS = ["http.route"]
TASKS = int(sys.argv[1])


def context(index):
    return otelctx.Context(TRACE, index, 1, {"http.route": "/%d" % index})


def published(value):
    return value and {
        "trace_id": value.trace_id,
        "span_id": value.span_id,
        "trace_flags": value.trace_flags,
        "attributes": value.attributes,
    }


async def attached(index, future, contexts):
    otelctx.attach(context(index))
    contexts.append(published(otelctx.current()))
    await future


async def updated(index, future, contexts):
    with otelctx.scope(context(index)):
        otelctx.update({"http.route": "/updated"})
        contexts.append(published(otelctx.current()))
        await future


async def inherited(future, contexts):
    contexts.append(published(otelctx.current()))
    await future


async def detached(index, future, contexts):
    token = otelctx.attach(context(index))
    otelctx.detach(token)
    contexts.append(None)
    await future


async def main():
    future = asyncio.get_running_loop().create_future()
    contexts = []
    # So that contexts have trees of variables, and not a single node.
    for index in range(200):
        contextvars.ContextVar("v%d" % index).set(index)
    tasks = []
    for index in range(1, TASKS + 1):
        tasks.append(asyncio.ensure_future(attached(index, future, contexts)))
    tasks.append(asyncio.ensure_future(updated(1000, future, contexts)))
    tasks.append(asyncio.ensure_future(detached(1001, future, contexts)))
    tasks.append(asyncio.ensure_future(inherited(future, contexts)))
    otelctx.attach(context(1002))
    tasks.append(asyncio.ensure_future(inherited(future, contexts)))
    own = asyncio.current_task()
    await asyncio.sleep(0)
    contexts.append(published(otelctx.current()))
    print(json.dumps([[id(task), it] for task, it in zip([*tasks, own], contexts)]), flush=True)
    await future


importlib.import_module(sys.argv[2]).new_event_loop().run_until_complete(main())
