#!/usr/bin/env bash
# cProfile of CPython 3.11 to 3.13 beside yappi 1.7.6.
# cProfile counts a coroutine or generator as called each time it is resumed: one request that awaits three times has four
# calls, and the time per call is a quarter of what it took. yappi counts one call.
# A good guess: ncalls is the number of times the function was called.
# Seen: 4 and 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check yappi==1.7.6

cat >main.py <<'PY'
import asyncio
import cProfile
import pstats
import yappi


async def request():
    for _ in range(3):
        await asyncio.sleep(0)


profile = cProfile.Profile()
profile.enable()
asyncio.run(request())
profile.disable()
print("cProfile:", *[stat[1] for (_, _, name), stat in pstats.Stats(profile).stats.items() if name == "request"])
yappi.start()
asyncio.run(request())
yappi.stop()
print("yappi:", *[f.ncall for f in yappi.get_func_stats() if f.name == "request"])
PY
got=$(venv/bin/python main.py)

expected='cProfile: 4
yappi: 1'
diff <(echo "$expected") <(echo "$got") || { echo "changed: calls of a coroutine"; exit 1; }
echo "ok: cProfile counts every resumption of a coroutine as a call"
