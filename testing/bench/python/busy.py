"""A fixed amount of work, as often as the first argument says. Writes the CPU time that it took, in seconds, to the
file that the second argument names.
"""

import hashlib
import json
import re
import resource
import sys

TEXT = json.dumps({"key %d" % number: [number, str(number), {"a": 1.5}] for number in range(300)})
WORDS = re.compile(r"\w+ (\d)\d*")


def recurse(depth):
    return 1 + recurse(depth - 1) if depth else 0


def work():
    json.dumps(json.loads(TEXT), sort_keys=True)
    sum(int(match.group(1)) for match in WORDS.finditer(TEXT))
    for _ in range(20):
        recurse(50)
    hashlib.sha256(TEXT.encode() * 20).digest()


for _ in range(int(sys.argv[1])):
    work()
usage = resource.getrusage(resource.RUSAGE_SELF)
with open(sys.argv[2], "w") as result:
    result.write(str(usage.ru_utime + usage.ru_stime))
