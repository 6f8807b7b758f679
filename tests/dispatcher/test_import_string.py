"""`module:name` is loaded, or it is said why not and what may have been meant."""

import sys

import pytest

from cqueue.dispatcher.application import import_string
from cqueue.dispatcher.application.import_string import TargetError
from cqueue.dispatcher.application.registry import place_of

TILL = """
import cqueue
app = cqueue.App("memory://till")
@app.periodic("@daily")
def count(): pass
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory to be in, with a few modules; whatever is imported from it is forgotten."""
    (tmp_path / "shopfront.py").write_text(
        "class App: pass\napp = App()\nmail = App()\ndef handle(m, c): pass\n"
    )
    (tmp_path / "depot").mkdir()
    (tmp_path / "depot" / "__init__.py").write_text("lorry = object()\n")
    (tmp_path / "depot" / "stock.py").write_text("class holder:\n    app = 'inner'\n")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "till.py").write_text(TILL)
    (tmp_path / "broken_shop.py").write_text("import missing_library\n")
    (tmp_path / "failing_shop.py").write_text("def work():\n    return 1 / 0\n\nwork()\n")
    (tmp_path / "leaving_shop.py").write_text("raise SystemExit('no licence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = {path.stem for path in tmp_path.iterdir()} | {"till", "stock"}
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]


@pytest.mark.parametrize("text", ["shopfront:app", "shopfront", "depot.stock:holder.app"])
@pytest.mark.usefixtures("project")
def test_a_name_in_a_module_of_the_current_directory_is_found(text):
    assert import_string.load(text) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shopfrnt:app", "no module 'shopfrnt'.*Did you mean 'shopfront'"),
        ("depot.stok:app", "no module 'depot.stok' in the package depot.*Did you mean 'depot.stock'"),
        ("shopfront:mial", "no 'mial'.*Did you mean 'mail'"),
        ("shopfront:zzz", "no 'zzz'.*It has app, mail"),
        ("shopfront.py", "not module:name.*Did you mean shopfront:app"),
        ("./depot/stock.py:holder", "Did you mean depot.stock:holder"),
        ("examples/till.py", "Did you mean --app-dir examples till:app"),
        ("shopfront.app", r"'shopfront' is a module.*Did you mean 'shopfront:app'\?"),
        ("shopfront.mial", r"Did you mean 'shopfront:mail'\?"),
        ("shopfront.app:run", r"Did you mean 'shopfront:app'\?"),
        ("shopfront.zzz", "It has app, mail"),
        ("depot.stock.holder", r"Did you mean 'depot.stock:holder'\?"),
        ("depot.lorry", r"Did you mean 'depot:lorry'\?"),
        ("shopfront:", "not module:name"),
        (":app", "not module:name"),
        ("", "not module:name"),
        ("a:b:c", "not module:name"),
        ("examples/", "not module:name, such as shop.tasks:app.$"),
        ("depot/:app", "not module:name, such as shop.tasks:app.$"),
        ("examples/tall.py", "not module:name, such as shop.tasks:app.$"),
        ("shopfront.py/", "Did you mean shopfront:app"),
        (".shopfront:app", "not module:name, such as shop.tasks:app.$"),
        ("depot..stock:holder", "not module:name, such as shop.tasks:app.$"),
        ("depot.", "not module:name, such as shop.tasks:app.$"),
        ("shopfront:app.", "not module:name, such as shop.tasks:app.$"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_typo_gets_a_sentence_and_a_suggestion(text, said):
    with pytest.raises(TargetError, match=f"(?s){said}") as caught:
        import_string.load(text)
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
    """The frames of the import itself are left out."""
    with pytest.raises(TargetError, match=said) as caught:
        import_string.load(text)
    assert f"{text}.py" in str(caught.value)
    assert "importlib" not in str(caught.value)


# ── Folders: a task has one name, from wherever it is loaded ──


@pytest.mark.parametrize(
    ("stand_in", "app_dir"), [("", "examples"), ("examples", None), ("depot", "examples")]
)
def test_tasks_and_schedules_have_the_same_name_from_every_folder(project, monkeypatch, stand_in, app_dir):
    monkeypatch.chdir(project / stand_in)
    app = import_string.load("till:app", project / app_dir if app_dir else None)
    assert list(app.tasks) == ["till:count"]
    assert [declared.key for declared in app._declared] == ["till:count"]


@pytest.mark.parametrize(
    ("stand_in", "text", "meant"),
    [
        ("", "examples.till:app", "--app-dir examples till:app"),
        ("", "examples.till", "--app-dir examples till:app"),
        ("depot", "stock:holder", r"--app-dir \.\. depot.stock:holder"),
    ],
)
def test_a_module_that_has_another_name_elsewhere_is_refused_before_it_is_imported(
    project, monkeypatch, stand_in, text, meant
):
    """Its messages and schedules would be unknown to dispatchers that start in another folder."""
    monkeypatch.chdir(project / stand_in)
    module = text.partition(":")[0]
    with pytest.raises(
        TargetError, match=rf"(?s)from '[\w.]+'\. Did you mean {meant}\?.*--app-dir \. {module}:"
    ):
        import_string.load(text)
    assert module not in sys.modules


def test_an_app_dir_that_is_given_is_where_names_begin(project):
    """`--app-dir` decides for modules in folders without `__init__.py`."""
    assert list(import_string.load("examples.till:app", project).tasks) == ["examples.till:count"]


def test_a_file_of_a_package_that_is_run_by_its_path_has_its_packages_in_its_name(project):
    assert place_of(project / "depot" / "stock.py") == (project, "depot.stock")
    assert place_of(project / "depot" / "__init__.py") == (project, "depot")
    assert place_of(project / "examples" / "till.py") == (project / "examples", "till")
