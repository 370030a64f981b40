"""Each of three threads has a context of its own, and the main thread none."""

import threading

import otelctx
from truth import TRACE, show, wait

IDS = [
    # An int, hexadecimal digits, and bytes.
    (TRACE, 1),
    (f"{TRACE:032x}", f"{2:016x}"),
    (TRACE.to_bytes(16, "big"), (3).to_bytes(8, "big")),
]
attached = threading.Barrier(len(IDS) + 1)
updated = threading.Barrier(len(IDS) + 1)
go_on = threading.Event()
finish = threading.Event()
tids = {}


def work(index):
    tids[threading.get_native_id()] = index
    trace, span = IDS[index]
    context = otelctx.Context(trace, span, index % 2, {"http.route": f"/{index}", "user.id": index})
    with otelctx.scope(context):
        attached.wait()
        go_on.wait()
        with otelctx.scope(context.child(index + 0x10, {"http.route": "/child"})):
            otelctx.update({"user.id": "é" * 200})
            updated.wait()
            finish.wait()
    assert otelctx.visible_to_readers() is None


threads = [threading.Thread(target=work, args=(index,)) for index in range(len(IDS))]
for thread in threads:
    thread.start()
attached.wait()
show(threads=tids)
wait()
go_on.set()
updated.wait()
show()
wait()
finish.set()
for thread in threads:
    thread.join()
show()
wait()
