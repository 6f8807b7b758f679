"""Mutation testing: what it says of mutants that change nothing."""

from argparse import Namespace
from dataclasses import asdict

from tests.mutation.__main__ import EQUIVALENT, Report, equivalents
from tests.mutation.mutants import ROOT, every_mutant, mutants


def known():
    return equivalents(EQUIVALENT.read_text(encoding="utf-8"))


def names(mutant):
    return mutant.module, mutant.function, mutant.what


def test_a_row_of_the_table_is_a_mutant_of_the_code_as_it_is():
    """So it does not outlive its line."""
    assert known()
    assert not set(known()) - set(map(names, every_mutant()))


def test_survivors_that_change_nothing_are_counted_apart(tmp_path):
    """They are not noticed, and nobody has to look at them again."""
    every = list(mutants(ROOT / known()[0][0]))
    equivalent = next(one for one in every if names(one) == known()[0])
    noticed, survivor = [one for one in every if names(one) not in known()][:2]
    tried = [noticed, survivor, equivalent]
    report = Report(Namespace(results=tmp_path / "results", seed=1, schedules=1), tried, len(every))
    for one, by in zip(tried, ("tests/test.py::test", None, None), strict=True):
        report.add(asdict(one) | {"by": by, "seconds": 0.1})
    text = report.text()
    assert text.count("survived: ") == 1
    assert f"survived: {survivor.module}:{survivor.line} " in text
    assert "33.3% noticed; {'test': 1, 'survived': 1, 'equivalent': 1}" in text


def test_a_change_may_have_the_character_that_ends_a_cell():
    assert equivalents("| `a.py` | `f` | `And: x \\| y` | it is free |\n") == [("a.py", "f", "And: x | y")]
    assert equivalents("| `a.py` | `f` | `And: x` | |\n") == [], "without a reason"
