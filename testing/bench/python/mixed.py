"""One busy thread that calls json, re, functions that C calls, and, unless the second argument is `stdlib`, numpy and
regex, for as many seconds as the first argument says.
"""

import json
import re
import sys
import time

IS_STDLIB = sys.argv[2:] == ["stdlib"]
# perf keeps 127 frames of a stack, and each call has several with `-X perf`.
DEPTH = 10 if IS_STDLIB else 50
if not IS_STDLIB:
    import numpy
    import regex

    MATRIX = numpy.arange(90000.0).reshape(300, 300) % 7.0
    WORDS_OF_REGEX = regex.compile(r"\w+ (\d)\d*")

TEXT = json.dumps({"key %d" % number: [number, str(number), {"a": 1.5}] for number in range(300)})
WORDS = re.compile(r"\w+ (\d)\d*")
NUMBERS = [number * 7919 % 10007 for number in range(3000)]


def parse():
    return json.dumps(json.loads(TEXT), sort_keys=True)


def match_words():
    return sum(int(match.group(1)) for match in WORDS.finditer(TEXT))


def match_words_by_regex():
    return sum(int(match.group(1)) for match in WORDS_OF_REGEX.finditer(TEXT))


def multiply():
    return numpy.sort(numpy.sin(MATRIX) + MATRIX, axis=1).sum()


def last_digits(number):
    return number % 1000


def sort():
    return sorted(NUMBERS, key=last_digits)


def recurse(depth):
    return 1 + recurse(depth - 1) if depth else 0


def even():
    for number in NUMBERS:
        if number % 2 == 0:
            yield number


def work():
    parse()
    match_words()
    if not IS_STDLIB:
        match_words_by_regex()
        multiply()
    sort()
    sum(even())
    for _ in range(1000 // DEPTH):
        recurse(DEPTH)


end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    work()
