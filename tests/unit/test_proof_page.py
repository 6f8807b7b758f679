"""The page of proofs names what exists, for each promise of the README."""

import ast
import re

import pytest

from tests.simulation.rules import BY_NAME
from tests.unit import markdown_pages as markdown

PAGE = markdown.ROOT / "docs" / "reference" / "proof.md"
README = markdown.ROOT / "README.md"
_SECTION = re.compile(r"^### (.+)\n((?:(?!^#).*\n)+)", re.MULTILINE)


def sections():
    return dict(_SECTION.findall(PAGE.read_text(encoding="utf-8")))


def line(text, kind):
    """What stands behind `- kind:` in a section."""
    (found,) = re.findall(rf"^- {kind}: (.+)$", text, re.MULTILINE)
    return found


def promises():
    """The first column of the README's table of promises."""
    table = README.read_text(encoding="utf-8").split("| promise | depends on | limit |\n", 1)[1]
    rows = table.split("\n\n", 1)[0].splitlines()[1:]
    return [row.split("|")[1].strip() for row in rows]


def rows_of_faults():
    """The numbers that tests of `tests/faults` give their rows."""
    texts = [
        path.read_text(encoding="utf-8") for path in (markdown.ROOT / "tests" / "faults").glob("test_*.py")
    ]
    return {int(number) for text in texts for number in re.findall(r"mark\.row\((\d+),", text)}


def test_every_promise_of_the_readme_has_its_proof():
    assert promises()
    assert set(promises()) <= set(sections())


@pytest.mark.parametrize("promise", sections())
def test_what_is_named_exists(promise):
    """Tests by file and function, rules of the simulator, rows of the fault table."""
    text = sections()[promise]
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line(text, "Tests"))
    assert tests
    assert line(text, "Tests").count("`") == 2 * len(tests), "something that is no test is named as one"
    for file, name in tests:
        assert name in functions(file), f"{file} has no {name}"
    rules = re.findall(r"`([\w-]+)`", line(text, "Simulator rules"))
    assert set(rules) <= set(BY_NAME)
    rows = {int(number) for number in re.findall(r"\d+", line(text, "Fault rows"))}
    assert rows <= rows_of_faults()


def functions(file):
    tree = ast.parse((markdown.ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_rule_and_every_row_is_proof_of_something():
    """A rule or a row that proves no promise would be for nothing, or its promise is not told."""
    texts = sections().values()
    rules = {rule for text in texts for rule in re.findall(r"`([\w-]+)`", line(text, "Simulator rules"))}
    rows = {int(row) for text in texts for row in re.findall(r"\d+", line(text, "Fault rows"))}
    assert rules == set(BY_NAME)
    assert rows == rows_of_faults() - {17, 19}, "17 is of the schema, 19 of the daemon's own end"
