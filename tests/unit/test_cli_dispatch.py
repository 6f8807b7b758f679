"""The command lines of the daemon: what they are made of, and what is said about wrong ones."""

import os
import re
import runpy
import sys
import textwrap

import pytest

import cqueue
from cqueue.cli import dispatch
from cqueue.client import connect
from cqueue.dispatcher.service.membership import TTL_S, Worker
from cqueue.errors import BadInput
from cqueue.store.control import Heartbeat
from tests.fix_cli import code_of_a_stuck
from tests.unit import markdown_pages as markdown

APP = """
    import os
    import cqueue

    app = cqueue.App()

    @app.task(queue="mail", name="send")
    def send(to):
        print("sent", to, flush=True)
"""


@pytest.fixture
def shop(cli_url, tmp_path, monkeypatch):
    """A module `cli_shop` where commands run, with one message to be sent."""
    (tmp_path / "cli_shop.py").write_text(textwrap.dedent(APP))
    monkeypatch.setenv("CQUEUE_URL", cli_url)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with cqueue.App(cli_url) as app:
        send = app.task(queue="mail", name="send")(lambda to: to)
        app.setup()
        send.enqueue("a@b")
    yield
    sys.modules.pop("cli_shop", None)


@pytest.mark.usefixtures("shop")
def test_drain_runs_what_is_due_on_the_cluster_of_the_url(cli):
    said = cli("dispatch", "cli_shop:app", "--drain", "--threads", 2, "--log", "json")
    assert said.code == 0, said.err
    assert said.out == "sent a@b\n"


@pytest.mark.usefixtures("shop")
def test_a_daemon_without_standard_error_runs_without_a_log(cli, monkeypatch):
    with monkeypatch.context() as closed:
        closed.setattr("sys.stderr", None)  # as by `2>&-`
        said = cli("dispatch", "cli_shop:app", "--drain")
    assert (said.code, said.out) == (0, "sent a@b\n")


@pytest.mark.usefixtures("shop")
def test_an_app_that_names_no_cluster_gets_that_of_the_command_line(cli, monkeypatch):
    monkeypatch.setenv("CQUEUE_URL", "memory://another")
    assert cli("dispatch", "cli_shop:app", "--drain").out == "sent a@b\n"
    assert os.environ["CQUEUE_URL"].startswith("memory://cli-")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["cli_shop:ap"], "Did you mean 'app'?"),
        (["cli_shp:app"], "Did you mean 'cli_shop'?"),
        (["cli_shop.app"], "Did you mean 'cli_shop:app'?"),
        (["cli_shop:app", "--app-dir", "nowhere"], "does not exist"),
        (["cli_shop:app", "--queues", "mial"], "Did you mean 'mail'?"),
        (["cli_shop:app", "--queues", " , "], "--queues names no queue"),
        (["cli_shop:app", "--threads", "1", "--consumers", "2"], "consumers is 2 and threads 1"),
        (["cli_shop:app", "--grace", "soon"], "not a duration"),
        (["cli_shop:app", "--processes", "0"], "greater than or equal to 1"),
        (["cli_shop:app", "--watch", "nowhere"], "does not exist"),
        (["cli_shop:app", "--health-host", "192.0.2.1", "--health-port", "1"], "192.0.2.1:1"),
        ([], "MODULE:APP"),
    ],
)
def test_what_is_wrong_is_said_and_costs_code_2(cli, args, said):
    result = cli("dispatch", *args)
    assert result.code == 2, result.err
    assert said in re.sub(r"[\s│]+", " ", result.err)
    assert "Traceback" not in result.err


@pytest.mark.usefixtures("shop")
def test_an_application_in_another_folder_is_run_from_here(cli, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    said = cli("dispatch", "cli_shop:app", "--app-dir", "..", "--drain", "--log", "json")
    assert (said.code, said.out) == (0, "sent a@b\n"), said.err


def test_names_of_queues_are_taken_apart():
    assert dispatch._names(None) == ()
    assert dispatch._names("mail, invoices,mail,") == ("mail", "invoices")
    with pytest.raises(BadInput):
        dispatch._names("")


@pytest.mark.parametrize("code", [0, 143])
def test_codes_that_stand_for_running_handlers_end_the_process_at_once(cli, monkeypatch, code):
    """Whatever non-daemon threads the application has."""
    left = []
    monkeypatch.setattr("cqueue.dispatcher.service.daemon.leave", left.append)
    monkeypatch.setattr(dispatch, "_run", lambda *_: code)
    assert cli("dispatch", "shop:app").code == 0
    assert left == ([code] if code else [])


# ── cqueue workers ──


def beat(url, name, **values):
    worker = Worker(name, "db-7", 4711, "shop:app", ("mail", "invoices"), 8, "1.0", 1_700_000_000.0, **values)
    with connect(url) as client:
        driver = client._driver
        row = worker.row()._replace(seen=driver.clock.now_us() // 1000 - 3000)
        driver.ask(Heartbeat(row, TTL_S))


def test_workers_shows_who_runs_what(cli, cli_url):
    beat(cli_url, "one", state="running", running=3, counters={"succeeded": 12345, "dead": 2})
    (row,) = cli("workers", "--json").json
    assert row["name"] == "one"
    assert (row["queues"], row["running"], row["counters"]["succeeded"]) == (["mail", "invoices"], 3, 12345)
    assert 3 <= row["age_s"] < 10
    text = cli("workers").out
    for part in ("one", "shop:app", "mail, invoices", "running", "12,345"):
        assert part in text
    assert re.search(r"\ds ago", text)


def test_without_workers_it_says_how_to_start_one(cli):
    said = cli("workers")
    assert (said.code, said.out) == (0, "")
    assert "cqueue dispatch" in said.err


# ── The example ──


def test_the_example_runs(cli, cli_url, monkeypatch):
    """All of its messages come to an end: done, or to be tried again."""
    monkeypatch.setenv("CQUEUE_URL", cli_url)
    examples = markdown.ROOT / "examples"
    monkeypatch.setattr(sys, "argv", ["shop.py", "3"])
    runpy.run_path(str(examples / "shop.py"), run_name="__main__")
    monkeypatch.setattr(sys, "path", [str(examples), *sys.path])
    monkeypatch.delitem(sys.modules, "shop", raising=False)  # that of a page that ran before
    said = cli("dispatch", "shop:app", "--drain", "--log", "json")
    sys.modules.pop("shop", None)
    assert said.code == 0, said.err
    assert said.err.count('"event": "receipt_sent"') == 3


def test_a_read_that_gets_no_answer_does_not_keep_the_process_of_cqueue_metrics():
    """Kubernetes would kill the process before."""
    assert code_of_a_stuck("metrics", "--port", "0", "--log", "json", once="health_listening") == 0


def test_a_process_without_standard_output_is_left_as_well():
    command = ("metrics", "--port", "0", "--log", "json")
    assert code_of_a_stuck(*command, once="health_listening", preexec_fn=lambda: os.close(1)) == 0
