"""The documentation is true: its code runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import json
import re
import secrets
import subprocess
import sys
import textwrap
import time
import tomllib
import types

import pytest

import cqueue
from cqueue import client as clients
from cqueue import errors, settings, testing
from tests.unit import markdown_pages as markdown

# Pages of which some Python cannot run here; a single block is marked in its page instead.
ELSEWHERE = {
    "docs/how-to/dev-cassandra.md": "starts Cassandra; tests/acceptance/test_dev_cassandra.py does the same",
    "docs/how-to/spark.md": "needs Spark; tests/spark/test_job_enqueue.py does the same",
}
# Pages of an extra that may be missing.
NEEDS = {"docs/how-to/tracing.md": "opentelemetry.sdk"}
PAGES = markdown.pages()
_OUTPUT = re.compile(r"#\s→\s(.*)$", re.MULTILINE)


def pages_with(*languages):
    return [path for path in PAGES if path.exists() and markdown.blocks(path, *languages)]


@pytest.mark.usefixtures("brief_settling")
@pytest.mark.parametrize("path", pages_with("python", "pycon"), ids=markdown.name)
def test_python_runs(path, monkeypatch, tmp_path):
    """Every Python block runs, those of a page in order in one namespace, and prints what `# →` says.

    Wherever a block connects to Cassandra it gets a store in memory, one for the page.
    """
    if reason := ELSEWHERE.get(markdown.name(path)):
        pytest.skip(reason)
    if needed := NEEDS.get(markdown.name(path)):
        pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.3)))  # in memory W is less
    _connect_to(monkeypatch, f"memory://page-{secrets.token_hex(4)}")
    _write_files(path, tmp_path, monkeypatch)
    _run_all(path)


@pytest.mark.parametrize("has", ["app.testing()", "Spool(", "create_log("])
def test_a_program_of_the_first_page_stands_alone(monkeypatch, tmp_path, has):
    """A reader copies it to a file of its own, so it imports what it needs."""
    page = markdown.ROOT / "README.md"
    monkeypatch.chdir(tmp_path)
    _connect_to(monkeypatch, f"memory://page-{secrets.token_hex(4)}")
    _write_files(page, tmp_path, monkeypatch)
    (block,) = [block for block in markdown.blocks(page, "python") if has in block.text]
    assert _run(block, {"__name__": "__main__"}) == _expected(block)


@pytest.mark.cassandra
@pytest.mark.parametrize("page", ["docs/how-to/asyncio.md", "docs/how-to/receive.md", "docs/how-to/tasks.md"])
def test_python_runs_on_cassandra(page, monkeypatch, new_keyspace):
    """What these pages show holds on Cassandra as well; acceptance/test_first_page.py has others."""
    _connect_to(monkeypatch, new_keyspace().url)
    _run_all(markdown.ROOT / page)


def _connect_to(monkeypatch, url):
    connect = cqueue.connect

    def connect_there(given=None, **options):
        return connect(given if given and given.startswith("memory://") else url, **options)

    monkeypatch.setattr(cqueue, "connect", connect_there)
    monkeypatch.setattr(clients, "connect", connect_there)  # an App looks there
    monkeypatch.setattr("cqueue.aio.connecting.connect", connect_there)


def _write_files(path, folder, monkeypatch):
    """Blocks that begin with the name of a file are written there, for the other blocks to import."""
    monkeypatch.syspath_prepend(folder)
    for block in markdown.blocks(path, "python"):
        if block.file and not (folder / block.file).exists():
            (folder / block.file).write_text(block.text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, block.file.removesuffix(".py"), raising=False)


def _run_all(path):
    namespace = {"__name__": "__main__"}
    for block in markdown.blocks(path, "python"):
        if block.skip is None and block.file is None:
            assert _run(block, namespace) == _expected(block), f"what {block} prints"
    for opened in ("app", "client"):
        if isinstance(found := namespace.get(opened), cqueue.App | cqueue.Client):
            found.close()


def _run(block, namespace):
    """What the block prints, or None if it does not say what it should print."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(block.code, namespace)  # noqa: S102 - that is the test
    return out.getvalue().splitlines() if _OUTPUT.search(block.text) else None


def _expected(block):
    return _OUTPUT.findall(block.text) or None


@pytest.mark.parametrize("path", pages_with("python", "pycon"), ids=markdown.name)
def test_no_block_is_skipped_without_need(path):
    """Sessions with `>>>` would not be run, and a reason for not running says something."""
    assert not markdown.blocks(path, "pycon"), "write blocks as ```python, so that they are run"
    for block in markdown.blocks(path, "python"):
        assert ">>>" not in block.text, block
        assert block.skip is None or len(block.skip) > 10, block


@pytest.mark.parametrize("path", PAGES, ids=markdown.name)
def test_blocks_say_what_they_are(path):
    """A block without a language would be checked by nobody."""
    known = {"python", "sh", "toml", "json", "text", "cql", "diff"}
    assert {block.language for block in markdown.blocks(path, *_languages(path))} <= known


def _languages(path):
    return {block.language for block in markdown._parse(path)[0]}


@pytest.mark.parametrize("path", pages_with("toml"), ids=markdown.name)
def test_configuration_files_load(path, tmp_path):
    """Every TOML block is a `cqueue.toml` that is accepted."""
    for block in markdown.blocks(path, "toml"):
        assert "cqueue" in tomllib.loads(block.text), block
        (tmp_path / "cqueue.toml").write_text(block.text, encoding="utf-8")
        settings.load("cassandra://host/keyspace", environ={"CQUEUE_PASSWORD": "x"}, directory=tmp_path)


@pytest.mark.parametrize("path", pages_with("json"), ids=markdown.name)
def test_json_is_json(path):
    """Every JSON block can be read as such."""
    for block in markdown.blocks(path, "json"):
        json.loads(block.text)


@pytest.mark.parametrize("path", PAGES, ids=markdown.name)
def test_links_lead_somewhere(path):
    """Each relative link names a file of this tree, and an anchor that its page has."""
    for target in markdown.links(path):
        if re.match(r"https?://|mailto:", target):
            continue
        file, _, anchor = target.partition("#")
        where = (path.parent / file).resolve() if file else path
        assert where.exists(), f"{markdown.name(path)} links to {target}"
        assert where.is_relative_to(markdown.ROOT), target
        if anchor:
            assert anchor in markdown.anchors(where), f"{markdown.name(path)} links to {target}"


@pytest.mark.parametrize("path", PAGES, ids=markdown.name)
def test_commands_exist(path):
    """`cqueue` commands and options are those of the command line, `make` targets those of the Makefile."""
    makefile = (markdown.ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for command in [*markdown.commands(path), *markdown.inline_commands(path)]:
        program, *arguments = command.words
        if program.rpartition("/")[2] == "cqueue":
            assert markdown.complaint(command.words) is None, (
                f"{command}: {markdown.complaint(command.words)}"
            )
        if program == "make":
            assert {word for word in arguments if "=" not in word} <= targets, command


@pytest.mark.cassandra
@pytest.mark.parametrize("page", ["docs/how-to/operate.md"])
def test_commands_work(page, new_keyspace, monkeypatch, capfd):
    """The commands of this page, in order, do what they are for on a real Cassandra that is empty."""
    from cqueue.cli.main import main

    monkeypatch.setenv("CQUEUE_URL", new_keyspace(schema=False).url)
    lines = [command.words[1:] for command in markdown.commands(markdown.ROOT / page) if _is_to_run(command)]
    for words in [("schema", "apply"), *lines]:
        assert main(words) == 0, f"{words}: {capfd.readouterr().err}"


def _is_to_run(command):
    if list(command.words[1:3]) in [["dc", "switch"], ["dc", "resume-retiring"]]:
        return False  # it takes two data centres; tests/acceptance/test_centres.py does it with one
    return command.words[0] == "cqueue" and command.words[1] not in {"dev", "--version"}


def test_every_page_can_be_reached():
    """Pages are linked from the map of the documentation; it and the change log from the first page."""
    readme, index, changes = (markdown.ROOT / name for name in ("README.md", "docs/index.md", "CHANGELOG.md"))
    assert {index, changes} <= linked(readme)
    assert set(PAGES) - {readme, index, changes} <= linked(index)


def linked(page):
    """The files that a page links to."""
    return {(page.parent / target.partition("#")[0]).resolve() for target in markdown.links(page)}


# ── The public names ──


def public_imports():
    """(module, name) of what `cqueue/__init__.py` shows to type checkers: what it imports `as` itself."""
    imports = [
        node for node in ast.walk(ast.parse(inspect.getsource(cqueue))) if isinstance(node, ast.ImportFrom)
    ]
    return [(node.module, alias.name) for node in imports for alias in node.names if alias.asname]


def test_all_is_complete():
    """`__all__` names all that type checkers see, once, and nothing else."""
    assert sorted(cqueue.__all__) == sorted(name for _, name in public_imports())
    assert not any(isinstance(getattr(cqueue, name), types.ModuleType) for name in cqueue.__all__)


def test_a_public_name_is_what_type_checkers_see():
    """Imported at its first use, from the same place."""
    for module, name in public_imports():
        assert getattr(cqueue, name) is getattr(importlib.import_module(module), name), name


def test_every_error_is_public():
    """A program that catches errors finds their classes where the rest is."""
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    names = {each.__name__ for each in classes if issubclass(each, cqueue.CqueueError)}
    assert names <= set(cqueue.__all__)


def test_an_unknown_name_is_an_attribute_error():
    """As of any module: `hasattr` and `from cqueue import` rely on it."""
    with pytest.raises(AttributeError, match="no attribute 'Quue'"):
        cqueue.Quue  # noqa: B018
    assert not hasattr(cqueue, "Quue")
    assert set(cqueue.__all__) <= set(dir(cqueue))


def test_the_package_alone_imports_nothing():
    """What is not used is not waited for: not the driver, nor structlog, nor asyncio."""
    heavy = "{'cassandra', 'structlog', 'tenacity', 'asyncio', 'concurrent'}"
    code = f"import sys, cqueue; print(*{heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""


def test_a_client_that_logs_nothing_imports_no_structlog():
    """Its imports bring rich and Pygments, a third of the time until a client is connected."""
    code = """
        import sys, cqueue
        with cqueue.connect("memory://") as client:
            queue = client.create_queue("q")
            queue.send(b"x")
            queue.consumer().receive(1)[0].ack()
        cqueue.App, cqueue.Dispatcher
        print(*{"structlog", "rich", "pygments"} & set(sys.modules))
    """
    said = subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], text=True)
    assert said.strip() == ""


def _entries(page):
    """Names in the first column of the page's tables, and in its headings."""
    text = (markdown.ROOT / page).read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.+?) \|", text, re.MULTILINE) + re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {name for cell in cells for code in re.findall(r"`([^`]+)`", cell) for name in _names(code)}


def _names(code):
    return re.findall(r"[A-Za-z_]\w*", code.partition("(")[0])


def test_every_public_name_is_documented():
    """The reference lists all of `__all__`, and every public attribute and method of the classes in it."""
    documented = _entries("docs/reference/api.md")
    assert set(cqueue.__all__) - documented == set()
    for name in (
        "App",
        "Client",
        "Context",
        "Firing",
        "Middleware",
        "Queue",
        "Retry",
        "Task",
        "Consumer",
        "ReceivedMessage",
        "Message",
        "SendResult",
        "QueueStats",
        "StoredMessage",
        "DeadLetters",
        "DeadLetter",
        "DelayQueue",
        "LettersResult",
        "Log",
        "LogConfig",
        "LogRecord",
        "Record",
        "AppendResult",
        "Scanner",
        "Follower",
        "Subscription",
        "Lag",
        "HttpPush",
    ):
        public = {member for member in _members(getattr(cqueue, name)) if not member.startswith("_")}
        assert public - documented == set(), name
    for name in ("Sandbox", "Job", "Run", "Runs", "DeadJob"):
        assert _members(getattr(testing, name)) - documented == set(), name


def _members(cls):
    own = {member for member in vars(cls) if not member.startswith("_")}
    return own | set(getattr(cls, "__dataclass_fields__", ()))


def test_every_setting_is_documented():
    """The reference lists every field of QueueConfig, every URL key, and every environment variable."""
    documented = _entries("docs/reference/configuration.md")
    fields = set(cqueue.QueueConfig.__dataclass_fields__)
    keys = set(settings.FILE_KEYS)
    variables = {settings.ENV_PREFIX + key.upper() for key in (*settings.FILE_KEYS, "config")}
    assert fields - documented == set()
    assert keys - documented == set()
    assert variables - set(re.findall(r"CQUEUE_\w+", _text("docs/reference/configuration.md"))) == set()


def test_every_error_is_explained():
    """The page on errors names each class."""
    errors = {
        name
        for name in cqueue.__all__
        if inspect.isclass(getattr(cqueue, name)) and issubclass(getattr(cqueue, name), Exception)
    }
    text = _text("docs/explanation/errors.md")
    assert {name for name in errors if f"`{name}`" not in text} == set()


def _text(page):
    return (markdown.ROOT / page).read_text(encoding="utf-8")
