"""The pytest plugin: fixtures for a project that has cqueue installed."""

from __future__ import annotations

import configparser
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cqueue.dev import DevCluster, guard, processes
from tests.unit import markdown_pages

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The example in a folder of its own, and cqueue installed: pytest finds the plugin as setup.cfg says."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    metadata = tmp_path / "site" / "cassandra_cqueue-0.dist-info"
    metadata.mkdir(parents=True)
    entry_points = setup["options.entry_points"]["pytest11"]
    (metadata / "entry_points.txt").write_text(f"[pytest11]\n{entry_points.strip()}\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: cassandra-cqueue\nVersion: 0\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(metadata.parent), str(ROOT)]))
    monkeypatch.delenv("CQUEUE_TEST_DIRECTORY", raising=False)  # of the run of this test
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("hooks.py", "test_hooks.py"):
        shutil.copy(ROOT / "examples" / name, folder)
    return folder


def run_pytest(folder, *options, limit_s=120):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=limit_s)
    return done.returncode, done.stdout + done.stderr


def test_a_project_names_its_application_in_the_configuration(project):
    """Its tests get the application in memory, a new one each; the example's own tests cover the rest."""
    (project / "pytest.ini").write_text("[pytest]\ncqueue_app = hooks:app\nstrict = true\n")
    code, output = run_pytest(project, "-W", "error")
    assert (code, "5 passed" in output) == (0, True), output


def test_the_page_about_testing_runs_under_pytest(project):
    """The page's tests run in one module, with the fixtures that the page shows."""
    page = ROOT / "docs/how-to/test.md"
    text = "\n".join(block.text for block in markdown_pages.blocks(page, "python"))
    (project / "test_hooks.py").write_text(text)
    tests = text.count("def test_")
    code, output = run_pytest(project, "-W", "error")
    assert (code, f"{tests} passed" in output) == (0, True), output


@pytest.mark.acceptance
def test_a_project_may_define_the_application_as_a_fixture(project):
    (project / "conftest.py").write_text(
        "import pytest, hooks\n\n@pytest.fixture\ndef cqueue_app():\n    return hooks.app\n"
    )
    code, output = run_pytest(project)
    assert (code, "5 passed" in output) == (0, True), output


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("", "which application? Set cqueue_app = module:name"),
        ("hooks:ap", "Did you mean"),
        ("hooks:order_paid", "names a function, not a cqueue.App"),
    ],
)
def test_a_project_that_says_it_wrongly_is_told(project, option, text):
    """The error is a sentence, not a traceback through the plugin."""
    (project / "pytest.ini").write_text(f"[pytest]\ncqueue_app = {option}\n")
    code, output = run_pytest(project)
    assert code == 1
    assert text in output
    assert "Traceback" not in output


@pytest.mark.acceptance
def test_a_project_that_does_not_use_it_imports_nothing_of_it(project):
    """Neither the driver nor anything else of cqueue, but for its errors and the plugin itself."""
    (project / "test_hooks.py").write_text(
        "import sys\n\n"
        "def test_nothing():\n"
        "    ours = {name for name in sys.modules if name.partition('.')[0] in ('cqueue', 'cassandra')}\n"
        "    assert ours == {'cqueue', 'cqueue._version', 'cqueue.errors', 'cqueue.pytest_plugin'}\n"
    )
    code, output = run_pytest(project)
    assert code == 0, output


@pytest.mark.acceptance
def test_a_project_may_run_pytest_within_a_test(project):
    """As the tests of a plugin do, in one process; the outer run ends like any other."""
    (project / "test_hooks.py").write_text(
        'pytest_plugins = ["pytester"]\n\n'
        "def test_inside(pytester):\n"
        "    pytester.makepyfile('def test(): pass')\n"
        "    pytester.runpytest_inprocess().assert_outcomes(passed=1)\n"
    )
    code, output = run_pytest(project)
    assert code == 0, output


PROJECT = '''
import asyncio
from datetime import timedelta

import pytest

import cqueue

SOON = timedelta(seconds=20)


@pytest.mark.parametrize("again", [1, 2])
def test_a_queue(cqueue_client, again):
    """Each test begins with no queues and logs, though the other one leaves some."""
    assert (cqueue_client.queues(), cqueue_client.logs()) == ([], [])
    queue = cqueue_client.create_queue("mail")
    cqueue_client.create_log("audit")
    queue.send(b"one")
    queue.send(b"left over")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(1, wait=SOON)
        message.dead("why")
    assert [letter.reason for letter in queue.dead_letters] == ["why"]


def test_code_that_connects_itself(cqueue_url, cqueue_client):
    cqueue_client.create_queue("mail")
    with cqueue.connect(cqueue_url) as client:
        client.queue("mail").send(b"one")
    assert [message.body for message in cqueue_client.queue("mail").peek()] == [b"one"]


def test_asyncio(cqueue_url):
    async def story():
        async with cqueue.connect_async(cqueue_url) as client:
            log = await client.create_log("audit", cqueue.LogConfig(partitions=1))
            async with log.follow("earliest", low_latency=True) as follower:
                await log.append("t", b"one")
                return [record.body for record in await follower.poll(SOON)]

    assert asyncio.run(story()) == [b"one"]
'''


@pytest.mark.parametrize("store", ["memory", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def test_tests_without_an_application_run_on_both_stores(project, store, request, monkeypatch):
    """The same tests, with one option more."""
    (project / "test_hooks.py").write_text(PROJECT)
    options = []
    if store == "cassandra":
        options = ["--cqueue-cassandra"]
        monkeypatch.setenv("CQUEUE_TEST_URL", request.getfixturevalue("cassandra_url"))
    code, output = run_pytest(project, "-W", "error", *options)
    assert (code, "4 passed" in output) == (0, True), output


@pytest.mark.acceptance
def test_the_plugin_starts_a_server_once_a_run(project, monkeypatch, tmp_path):
    """Two workers of pytest-xdist share it, and nothing is left of it afterwards."""
    (project / "test_hooks.py").write_text(PROJECT)
    monkeypatch.delenv("CQUEUE_TEST_URL", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code, output = run_pytest(project, "-W", "error", "--cqueue-cassandra", "-n", "2", limit_s=280)
    assert (code, "4 passed" in output) == (0, True), output
    assert list(tmp_path.glob("cqueue-pytest-*")) == []


@pytest.mark.acceptance
def test_a_run_that_is_killed_leaves_no_server(project, monkeypatch, tmp_path):
    """As where a job of a build server is cancelled: it gets a SIGTERM, on which pytest cleans nothing up."""
    (project / "test_hooks.py").write_text(
        "import signal\n\ndef test(cqueue_url):\n    print('there', flush=True)\n    signal.pause()\n"
    )
    monkeypatch.delenv("CQUEUE_TEST_URL", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "--cqueue-cassandra"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) as run:
        assert any("there" in line for line in run.stdout)
        (directory,) = tmp_path.glob("cqueue-pytest-*")
        (node,) = DevCluster(directory).status().nodes
        with (directory / guard.LOCK).open("a") as held:
            run.terminate()
            fcntl.flock(held, fcntl.LOCK_EX)  # until the guard ends
    assert processes.is_gone(node.pid)
    assert not directory.exists()
