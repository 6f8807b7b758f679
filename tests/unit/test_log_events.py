"""Test that log events have stable names, and values in fields."""

import ast
import re
from pathlib import Path

import pytest

import cqueue

PACKAGE = Path(cqueue.__file__).parent
NAME = re.compile(r"[a-z][a-z0-9_]*")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def calls_of_loggers(tree):
    """Return calls such as `_log.info(…)`, `self._log.info(…)` and `logger().info(…)`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        on = ast.unparse(node.func.value)
        if node.func.attr in LEVELS and re.search(r"(^|[._])log(ger)?(\(.*\))?$", on):
            yield node


def sources():
    """Return every module once: two of the folders are links."""
    return sorted(
        {path.resolve() for path in PACKAGE.rglob("*.py")}
        | {path.resolve() for path in (PACKAGE / "dispatcher").rglob("*.py")}
    )


def test_there_are_calls_to_look_at():
    found = [call for path in sources() for call in calls_of_loggers(ast.parse(path.read_text("utf-8")))]
    assert len(found) > 30


@pytest.mark.parametrize("path", sources(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_event_is_a_name_and_never_a_formatted_text(path):
    """A query for the name keeps working, and a value with a quote breaks no line."""
    for call in calls_of_loggers(ast.parse(path.read_text("utf-8"))):
        where = f"{path.name}:{call.lineno}: {ast.unparse(call)}"
        assert len(call.args) == 1, where  # no values to be formatted in
        (event,) = call.args
        assert not isinstance(event, ast.JoinedStr | ast.BinOp), where
        if isinstance(event, ast.Constant):
            assert NAME.fullmatch(event.value), where
