"""Suggestions: one form of words for every name that is not known."""

from pathlib import Path

import pytest

from cqueue.runtime.suggestions import did_you_mean, nearest, suggest, suggest_or_list

TREE = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (suggest("mial", ["mail", "post"]), " Did you mean 'mail'?"),
        (suggest("zzz", ["mail"]), ""),
        (suggest("zzz", ["mail"], "Look there."), " Look there."),
        (suggest_or_list("mial", iter(["mail"])), " Did you mean 'mail'?"),
        (suggest_or_list("zzz", iter(["mail", "post"])), " There are: mail, post."),
        (did_you_mean("shop:app"), " Did you mean 'shop:app'?"),
        (nearest("zzz", ["mail"], cutoff=0), "mail"),
    ],
)
def test_a_suggestion_follows_a_sentence(made, text):
    """The nearest name in quotes, or another sentence, or nothing."""
    assert made == text


def test_only_this_module_compares_names():
    """Every other one asks it, so that all suggestions read alike."""
    files = [file for part in ("cqueue", "dispatcher", "schema") for file in (TREE / part).rglob("*.py")]
    comparing = {file.name for file in files if "get_close_matches" in file.read_text(encoding="utf-8")}
    assert comparing == {"suggestions.py"}
