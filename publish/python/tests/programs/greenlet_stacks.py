"""A greenlet, started by another one, computes all the time. It says the names of its own functions, innermost first."""

import json

from greenlet import greenlet


def compute(end):
    total = 0
    for number in range(end):
        total += number * number
    return total


def innermost():
    print(json.dumps(["compute", "innermost"]), flush=True)
    while True:
        compute(10000)


def between():
    greenlet(innermost).switch()


def outermost():
    greenlet(between).switch()


outermost()
