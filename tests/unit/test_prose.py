"""`tests.prose` finds each refused habit in docstrings, comments and pages, and nothing elsewhere."""

import pytest

from tests import prose

REFUSED = [
    "Wait for so long.",
    "Send so many messages.",
    "Whoever reads it, deletes it.",
    "The slot is of whoever has it.",
    "The how-manieth of those that may be used.",
    "The answer. It.",
    "Look at nothing any more that there is by now.",
    "Who looks for nothing forgets where he has looked.",
]
ALLOWED = [
    "So many messages wait that a pass takes seconds.",
    "It is read twice as often; so are all of its rows.",
    "Who sends these messages?",
    "Close it.",
    "Returns `whoever`.",
]


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_habit_is_found_where_prose_stands(tmp_path, sentence):
    module, page = tmp_path / "module.py", tmp_path / "page.md"
    docstring = f'"""Begin.\n\n{sentence}\n"""'
    module.write_text(f'{docstring}\n\nX = "#"  # {sentence}\n\n# And.\n# {sentence}\n')
    page.write_text(f"# Title\n\n* {sentence}\n")
    assert [place.split(":")[1] for place in prose.places([module, page])] == ["1", "6", "8", "3"]


@pytest.mark.parametrize("sentence", ALLOWED)
def test_good_prose_is_let_alone(sentence):
    assert list(prose.habits(sentence, is_docstring=True)) == []


@pytest.mark.parametrize("docstring", ["It.", "That one.", "Message", "`close`."])
def test_a_docstring_of_one_word_is_found(tmp_path, docstring):
    module = tmp_path / "module.py"
    module.write_text(f'def f():\n    """{docstring}"""\n')
    assert len(list(prose.places([module]))) == 1 + (docstring == "It.")


def test_code_is_no_prose(tmp_path):
    """Neither texts that a program handles, nor blocks of code in a page."""
    module, page = tmp_path / "module.py", tmp_path / "page.md"
    module.write_text('X = "# whoever"\nY = """\n# whoever\n"""\nwhoever = f(\'"""\')\nZ = \'whoever\'\n')
    page.write_text("```\nwhoever\n```\n`whoever` is a name.\n")
    assert list(prose.places([module, page])) == []


def test_the_check_fails_where_a_habit_is(tmp_path, monkeypatch, capsys):
    module = tmp_path / "module.py"
    monkeypatch.setattr("sys.argv", ["prose", str(module)])
    module.write_text("# Whoever comes.\n")
    assert prose.main() == 1
    assert capsys.readouterr().out.startswith(f"{module}:1: 'whoever'")
    module.write_text("# A process comes.\n")
    assert prose.main() == 0
