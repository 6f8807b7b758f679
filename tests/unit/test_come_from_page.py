"""The tables of words for those who come from elsewhere: each of our names exists."""

import inspect
import re
from functools import cache

import pytest

import cqueue
from cqueue.dispatcher.application import tasks
from cqueue.dispatcher.execution.options import Options
from cqueue.testing import Sandbox
from tests.unit import markdown_pages as markdown

PAGE = (markdown.ROOT / "docs" / "how-to" / "come-from.md").read_text(encoding="utf-8")
PYTHON = {"range", "timedelta", "minutes", "seconds"}
OPTIONS = (tasks.SendOptions, tasks.CronOptions, tasks.TaskOptions, Options)


def our_code(page):
    """Return the code in the last column of each row, without texts in quotes."""
    cells = re.findall(r"^\| .+? \| (.+) \|$", page, re.MULTILINE)
    found = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    return [re.sub(r'"[^"]*"', "", code) for code in found if not code.startswith(("cqueue ", "-"))]


def names(code):
    """Return the names that are called, given by keyword, or asked of an object."""
    return {*re.findall(r"(\w+)\(", code), *re.findall(r"(\w+)=", code), *re.findall(r"\.([a-z]\w*)", code)}


@cache
def public():
    """Return the names of all that is public, of its attributes, and of what its calls take."""
    classes = [getattr(cqueue, name) for name in cqueue.__all__]
    found = {*cqueue.__all__, *(option for options in OPTIONS for option in options.__annotations__)}
    for one in [*classes, Sandbox]:
        members = {name: member for name, member in inspect.getmembers(one) if not name.startswith("_")}
        found |= {*members, *getattr(one, "__dataclass_fields__", ()), *getattr(one, "__annotations__", ())}
        for call in [one, *members.values()]:
            if callable(call):
                found |= parameters(call)
    return found


def parameters(call):
    try:
        return set(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return set()


def unknown(page):
    return {name for code in our_code(page) for name in names(code)} - public() - PYTHON


def test_each_name_exists():
    assert unknown(PAGE) == set()


@pytest.mark.parametrize(
    ("name", "wrong"), [("enqueue(", "enqeue("), ("delay=", "dealy="), (".attempt", ".atempt")]
)
def test_a_name_that_does_not_exist_is_noticed(name, wrong):
    assert unknown(PAGE.replace(name, wrong)) == {wrong.strip("(.=")}
