"""docs/glossary.md has each word of the project's own that public names and modules use, and no other."""

import re
from functools import cache
from pathlib import Path

import pytest

import cqueue
from tests.prose import PYTHON

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"^\| (?P<terms>\*\*.+?) \| .+ \|$", re.MULTILINE)
TOOLS = {"bench", "cli", "demo", "dev", "doctor", "spark", "testing", "web"}
"""Rooms under cqueue/ whose modules are not checked: commands and tools, in the words of what they call."""

PLAIN = """
    aio argument arrow async atomic await bad bench bootstrap bridge by call cassandra cell centre cli clock
    closed coalescer codec collector column config connect connection control counts cqueue cron current
    damage data datagram decode definition demo dev disk doctor done drift duration error estimate event
    execute execution exists expired exporter failed fanout file found frame full health http id import input
    inspection interface interrupt invalid known large last late launch level limiter loop lost main many
    merge metrics migrations mismatch model name no not old once options out owned ownership page parent plan
    plugin process progress protocol pytest range reader reconnection recovery refused rejected render
    repeating request result role runtime schema sequences service settings side socket source spark state
    statement stats string suggestions systemd testing text thread too unavailable urls version web wire wrong
"""
"""Words of public names and modules that mean what they mean everywhere. Any other word needs an entry."""


def stems(names):
    """Return the words of some names without their endings: `RingCoalescer` and `ring` are ring, coalesc."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", names)}
    return {re.sub(r"(?:ings?|ers?|ors?|ed|es|e|s)$", "", re.sub("ies$", "y", word)) for word in words}


def entries(page):
    return [found["terms"].replace("**", "") for found in ENTRY.finditer(page)]


def modules():
    """Return the paths of all modules, once each: not again behind the links in `cqueue/`."""
    rooms = [ROOT / "dispatcher", ROOT / "schema", *(ROOT / "cqueue").iterdir()]
    found = [path for room in rooms if not room.is_symlink() for path in [room, *room.rglob("*.py")]]
    return [path.relative_to(ROOT) for path in found if path.suffix == ".py"]


def names():
    """Return the public names, and those of rooms and modules."""
    rooms = {path.parent.name for path in modules()}
    checked = {path.stem for path in modules() if not TOOLS & set(path.parts[1:-1])}
    return {*cqueue.__all__, *rooms, *checked} - {"__init__", "jobs"}


@cache
def words_of_the_code():
    """Return the stems in all names of the code: modules, classes, functions, variables."""
    sources = [(ROOT / path).read_text(encoding="utf-8") for path in modules()]
    return stems(" ".join([*map(str, modules()), *(PYTHON.sub(" ", source) for source in sources)]))


def unexplained(page):
    explained = " ".join(entries(page))
    known = stems(f"{explained} {explained.replace('-', '')} {PLAIN}")
    return {name for name in names() if not stems(name) <= known}


def unused(page):
    code = words_of_the_code()
    return [
        entry for entry in entries(page) if not stems(re.sub(r"\(.*\)", "", entry)) <= code | stems("of a")
    ]


def test_each_word_of_a_name_has_an_entry_or_is_plain():
    assert unexplained(PAGE) == set()


def test_each_entry_names_something_that_the_code_has():
    assert unused(PAGE) == []


def test_a_plain_word_is_used_and_has_no_entry():
    used, explained = stems(" ".join(names())), stems(" ".join(entries(PAGE)))
    assert [word for word in PLAIN.split() if not stems(word) <= used - explained] == []


def test_entries_are_sorted_and_single():
    order = [re.sub("[^a-z]", " ", entry.lower()) for entry in entries(PAGE)]
    assert order == sorted(set(order))


@pytest.mark.parametrize(("term", "name"), [("settlement writer", "settlement_writer"), ("lag", "Lag")])
def test_a_missing_entry_is_found(term, name):
    assert name in unexplained(PAGE.replace(f"| **{term}** |", f"| {term} |"))


def test_an_entry_of_a_word_that_is_gone_is_found():
    assert unused("| **courier** | carries a message |\n") == ["courier"]
