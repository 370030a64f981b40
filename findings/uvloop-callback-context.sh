#!/usr/bin/env bash
# uvloop 0.23.0 beside asyncio of Python 3.11 to 3.13.
# connection_lost after transport.close() runs in the context of the caller of close() under asyncio, and in the context in
# which the transport was made under uvloop.
# A good guess: uvloop is a drop-in replacement, so what a callback starts has the same parent under both.
# Seen: "closer" under asyncio, "creator" under uvloop.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check uvloop==0.23.0

cat >main.py <<'PY'
import asyncio
import contextvars
import uvloop

request = contextvars.ContextVar("request", default="none")
seen = {}


def context(name):
    c = contextvars.copy_context()
    c.run(request.set, name)
    return c


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        seen["connection_made"] = request.get()

    def connection_lost(self, error):
        seen["connection_lost"] = request.get()
        self.lost.set()


async def main():
    loop = asyncio.get_running_loop()
    creator, closer = context("creator"), context("closer")

    async def listen():
        return await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))

    Datagrams.lost = asyncio.Event()
    transport, _ = await loop.create_task(listen(), context=creator)
    closer.run(transport.close)
    await asyncio.wait_for(Datagrams.lost.wait(), 20)


for factory in asyncio.new_event_loop, uvloop.new_event_loop:
    seen.clear()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    print(factory.__module__.partition(".")[0], sorted(seen.items()))
PY
got=$(venv/bin/python main.py)

expected="asyncio [('connection_lost', 'closer'), ('connection_made', 'creator')]
uvloop [('connection_lost', 'creator'), ('connection_made', 'creator')]"
diff <(echo "$expected") <(echo "$got") || { echo "changed: the context of connection_lost"; exit 1; }
echo "ok: asyncio and uvloop run connection_lost in different contexts"
