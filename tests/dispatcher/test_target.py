"""`module:name` is loaded, or it is said why not and what may have been meant."""

import sys

import pytest

from cqueue.dispatcher import target
from cqueue.dispatcher.target import TargetError


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory to be in, with a few modules; whatever is imported from it is forgotten."""
    (tmp_path / "shopfront.py").write_text(
        "class App: pass\napp = App()\nmail = App()\ndef handle(m, c): pass\n"
    )
    (tmp_path / "depot").mkdir()
    (tmp_path / "depot" / "__init__.py").write_text("")
    (tmp_path / "depot" / "stock.py").write_text("class holder:\n    app = 'inner'\n")
    (tmp_path / "broken_shop.py").write_text("import missing_library\n")
    (tmp_path / "failing_shop.py").write_text("def work():\n    return 1 / 0\n\nwork()\n")
    (tmp_path / "leaving_shop.py").write_text("raise SystemExit('no licence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("text", ["shopfront:app", "shopfront", "depot.stock:holder.app"])
@pytest.mark.usefixtures("project")
def test_a_name_in_a_module_of_the_current_directory_is_found(text):
    assert target.load(text) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shopfrnt:app", "no module 'shopfrnt'.*Did you mean 'shopfront'"),
        ("depot.stok:app", "no module 'depot.stok' in the package depot.*Did you mean 'depot.stock'"),
        ("shopfront:mial", "no 'mial'.*Did you mean 'mail'"),
        ("shopfront:zzz", "no 'zzz'.*It has app, mail"),
        ("shopfront.py", "not module:name.*Did you mean shopfront:app"),
        ("./depot/stock.py:holder", "Did you mean depot.stock:holder"),
        ("shopfront:", "not module:name"),
        (":app", "not module:name"),
        ("", "not module:name"),
        ("a:b:c", "not module:name"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_typo_gets_a_sentence_and_a_suggestion(text, said):
    with pytest.raises(TargetError, match=f"(?s){said}") as caught:
        target.load(text)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("broken_shop", "No module named 'missing_library'"),
        ("failing_shop", "ZeroDivisionError"),
        ("leaving_shop", "no licence"),
    ],
)
@pytest.mark.usefixtures("project")
def test_an_error_of_the_application_is_shown_with_its_traceback(text, said):
    """And nothing of how it was imported."""
    with pytest.raises(TargetError, match=said) as caught:
        target.load(text)
    assert f"{text}.py" in str(caught.value)
    assert "importlib" not in str(caught.value)
