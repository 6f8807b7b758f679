"""The page of faults says by itself whether the code has changed since."""

import sys

import pytest

from tests.faults import table
from tests.unit import markdown_pages as markdown

PAGE = "docs/reference/faults.md"


@pytest.fixture
def tree(tmp_path):
    """A tree with a file of each kind, and a function that changes one and returns the fingerprint."""
    files = {
        "cqueue/protocol/a.py": "X = 1\n",
        "cqueue/store/b.py": "Y = 2\n",
        "schema/01_a.cql": "CREATE x;\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)

    def change(name, text):
        (tmp_path / name).write_text(text)
        return table.fingerprint(tmp_path)

    return tmp_path, change


def test_its_heading_is_true():
    text = (markdown.ROOT / PAGE).read_text(encoding="utf-8")
    if f"Python {sys.version_info.major}.{sys.version_info.minor}." not in text:
        pytest.skip("the fingerprint is of a syntax tree, which another Python writes in other words")
    assert text == table.with_age(text, table.fingerprint()), f"run python -m tests.faults.table {PAGE}"


@pytest.mark.parametrize(
    ("file", "same", "other"),
    [
        ("cqueue/protocol/a.py", '"""What it is."""\n\nX = 1  # one\n', "X = 2\n"),
        ("schema/01_a.cql", "-- a table\nCREATE\n  x;\n", "CREATE y;\n"),
    ],
)
def test_code_makes_it_older_and_comments_do_not(tree, file, same, other):
    root, change = tree
    before = table.fingerprint(root)
    page = f"{table.TITLE}\n\nCommit abc; fingerprint `{before}`.\n"
    assert table.with_age(page, change(file, same)) == page
    old = table.with_age(page, change(file, other))
    assert old.splitlines()[0] == table.OLD_TITLE
    assert table.with_age(old, before) == page


def test_a_new_file_makes_it_older(tree):
    root, change = tree
    before = table.fingerprint(root)
    assert change("cqueue/store/c.py", "") != before
