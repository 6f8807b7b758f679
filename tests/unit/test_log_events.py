"""Test that log events have stable names, and values in fields."""

import ast
import re
from functools import cache
from pathlib import Path

import cqueue
from cqueue.dispatcher.execution.events import Event
from cqueue.dispatcher.service.logs import DaemonEvent

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
PACKAGE = Path(cqueue.__file__).parent
NAME = re.compile(r"[a-z][a-z0-9_]*")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


@cache
def parsed(path):
    """Return what is looked at of a module, which is parsed once: calls of loggers, events, loggers made."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    by_logger = [call for call in calls if _is_of_a_logger(call.func)]
    return by_logger, list(_events(path, tree, calls, by_logger)), list(_standard_loggers(nodes))


def calls_of_loggers(path):
    """Return calls such as `_log.info(…)`, `self._log.info(…)` and `logger().info(…)`."""
    return parsed(path)[0]


def _standard_loggers(nodes):
    for node in nodes:
        match node:
            case ast.Assign(value=ast.Call(func=ast.Attribute(ast.Name("logging"), "getLogger"))):
                yield node


def _is_of_a_logger(function):
    if not isinstance(function, ast.Attribute) or function.attr not in LEVELS:
        return False
    return re.search(r"(^|[._])log(ger)?(\(.*\))?$", ast.unparse(function.value)) is not None


@cache
def sources():
    """Return every module once: two of the folders are links."""
    return sorted(
        {path.resolve() for path in PACKAGE.rglob("*.py")}
        | {path.resolve() for path in (PACKAGE / "dispatcher").rglob("*.py")}
    )


def test_an_event_is_a_name_and_never_a_formatted_text():
    """A query for the name keeps working, and a value with a quote breaks no line."""
    found = [(path, call) for path in sources() for call in calls_of_loggers(path)]
    assert len(found) > 30
    for path, call in found:
        where = f"{path.name}:{call.lineno}: {ast.unparse(call)}"
        assert len(call.args) == 1, where  # no values to be formatted in
        (event,) = call.args
        assert not isinstance(event, ast.JoinedStr | ast.BinOp), where
        if isinstance(event, ast.Constant):
            assert NAME.fullmatch(event.value), where


# ── The page that lists them ──

SAYS = {"say", "of", "_log_once", "_tell", "log_failure"}
"""Functions that take an event's name first, and log it."""
ENUMS = {"Event": Event, "DaemonEvent": DaemonEvent}


def documented():
    """Return level and fields by event, as the page has them."""
    rows = re.findall(
        r"^\| `(\w+)` \| ([\w, ]+) \| (.*?) \| .+? \| .+? \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) == len({name for name, *_ in rows}), "an event stands there twice"
    return {name: (set(levels.split(", ")), fields) for name, levels, fields in rows}


def names_of(expression, constants):
    """Return the names of events that an argument may be."""
    match expression:
        case ast.Constant(str() as value):
            return {value}
        case ast.IfExp():
            return names_of(expression.body, constants) | names_of(expression.orelse, constants)
        case ast.Name(name):
            return constants.get(name, set())
        case ast.Attribute(ast.Name(owner), name) | ast.Attribute(ast.Attribute(_, owner), name):
            return {str(getattr(ENUMS[owner], name))} if owner in ENUMS else set()
    return set()


def logged():
    """Yield every call that logs an event: its names, its level if the call says it, and its fields."""
    for path in sources():
        yield from parsed(path)[1]


def _events(path, tree, calls, by_logger):
    constants = {
        ast.unparse(target): {node.value.value}
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    for call in calls:
        function = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
        if call.args and (call in by_logger or function in SAYS):
            names = {
                name for name in names_of(call.args[0], constants) if NAME.fullmatch(name) and "_" in name
            }
            level = function if call in by_logger else None
            yield names, level, {each.arg for each in call.keywords if each.arg}, path.name


def all_events():
    """Return the names of all events in the code."""
    found = {name for names, *_ in logged() for name in names}
    members = [value for name, value in vars(DaemonEvent).items() if not name.startswith("_")]
    return found | {event.value for event in Event} | set(members)


def test_every_event_stands_in_the_page_and_no_other():
    """A query, or an alert, for an event that the page has finds it."""
    code, page = all_events(), documented().keys()
    assert code - page == set(), "not documented"
    assert page - code == set(), "vanished from the code"
    assert len(code) > 70  # or the search has gone blind


def test_levels_and_fields_are_those_of_the_page():
    page = documented()
    for names, level, fields, where in logged():
        for name in names:
            levels, text = page[name]
            assert level is None or level in levels, (where, name)
            missing = {each for each in fields if f"`{each}`" not in text} - {"delivery", "is_lasting"}
            assert not missing, (where, name)
    for event in Event:
        assert event.level in page[event.value][0], event


def test_no_traceback_is_logged_with_its_texts_by_the_way():
    """`exception` and `exc_info` write the texts of errors, which may quote a message."""
    for path in sources():
        for call in calls_of_loggers(path):
            assert call.func.attr != "exception", f"{path.name}:{call.lineno}"
            assert "exc_info" not in {each.arg for each in call.keywords}, f"{path.name}:{call.lineno}"


def test_every_logger_is_structlogs():
    """One pipe, with fields: the standard library's loggers are only configured."""
    for path in sources():
        for node in parsed(path)[2]:
            assert ast.unparse(node.targets[0]) in {"root", "_DRIVER_LOG"}, f"{path.name}:{node.lineno}"
