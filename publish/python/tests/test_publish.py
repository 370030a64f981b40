"""Which resource attributes can be published."""

import subprocess

import pytest
from conftest import PYTHON, TIMEOUT

PROGRAM = """
import otelctx
value = []
{statement}
try:
    otelctx.publish({{"nested": value}})
    print("published")
except OSError as error:
    print(error)
"""
TOO_DEEP = "a value is nested deeper than 32 lists and maps, which readers reject"


@pytest.mark.parametrize(
    "statement,expected",
    [
        ("for _ in range(31): value = [value]", "published"),
        ("for _ in range(32): value = [value]", TOO_DEEP),
        ("for _ in range(200_000): value = (value,)", TOO_DEEP),
        ("value.append(value)", TOO_DEEP),
    ],
)
def test_lists_that_are_nested_too_deep_are_refused(statement, expected):
    program = PROGRAM.format(statement=statement)
    done = subprocess.run(
        [PYTHON, "-c", program], stdout=subprocess.PIPE, text=True, timeout=TIMEOUT
    )
    assert (done.stdout.strip(), done.returncode) == (expected, 0)


@pytest.mark.parametrize("publishes", [True, False])
def test_a_publisher_that_comes_later_is_warned_of_once(start, publishes):
    line = start("beside", "publishes" if publishes else "does not").line()
    messages = [message.split(" (")[0] for message in line["messages"]]
    assert messages == ["ddtrace has published a second process context"] * publishes
