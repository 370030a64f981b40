"""One busy thread that calls numpy, json, re and regex, and functions that C calls, for as many seconds as the first
argument says.
"""

import json
import re
import sys
import time

import numpy
import regex

TEXT = json.dumps({"key %d" % number: [number, str(number), {"a": 1.5}] for number in range(300)})
WORDS = re.compile(r"\w+ (\d)\d*")
WORDS_OF_REGEX = regex.compile(r"\w+ (\d)\d*")
MATRIX = numpy.arange(90000.0).reshape(300, 300) % 7.0
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
    match_words_by_regex()
    multiply()
    sort()
    sum(even())
    for _ in range(20):
        recurse(50)


end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    work()
