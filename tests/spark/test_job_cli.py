"""`cqueue spark`: each job from the shell, its JSON, its exit code, and what it says to mistakes."""

import contextlib
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.cli.main import main
from cqueue.spark.jobs import opening


@pytest.fixture
def run(spark, url, capsys, monkeypatch, tmp_path):
    """Run `cqueue spark …` in this process, on the session of the tests; (exit code, out, err)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(opening, "opened", lambda *_: contextlib.nullcontext(spark))

    def call(*args):
        capsys.readouterr()
        code = main(["--url", url, "spark", *map(str, args)])
        return int(code), *capsys.readouterr()

    return call


@pytest.fixture
def told(run):
    """The JSON of a command that is done."""

    def call(*args, code=0):
        found, out, err = run(*args, "--json")
        assert found == code, err
        return json.loads(out)

    return call


@pytest.fixture
def queue(client, new_name):
    return client.create_queue(new_name("q"))


@pytest.fixture
def orders(tmp_path):
    """Ten orders of five customers, as CSV."""
    path = tmp_path / "orders.csv"
    path.write_text("order,who\n" + "".join(f"{n},c{n % 5}\n" for n in range(10)))
    return path


def test_enqueue_report_dedup(run, told, queue, orders, tmp_path):
    """Files to a queue, a look at it, and the same files again."""
    sets = ("--queue", queue.name, "--set", "key=who", "--set", "body=order")
    assert told("enqueue", orders, *sets, "--dry-run")["written"] == 10
    done = told("enqueue", orders, *sets, "--where", "order < 5")
    assert (done["read"], done["written"], done["queue"]) == (10, 5, queue.name)
    assert queue.stats(exact=True).live == 5
    page = tmp_path / "page.html"
    report = told("report", "--queue", queue.name, "--html", page)
    assert report["read"] == 5
    assert "Backlog" in page.read_text()
    code, out, _ = run("report", "--queue", queue.name)
    assert (code, "Top keys" in out) == (0, True)
    again = told("dedup", orders, *sets)
    assert (again["written"], again["duplicates"], again["known"]) == (0, 5, 5)


def test_archive_and_replay(told, client, queue, new_name, tmp_path, *, wait_until_stable):
    """A log to files and from there to a queue."""
    log = client.create_log(new_name("l"), cqueue.LogConfig(partitions=1))
    log.append_many([cqueue.Record("t", b"x", key=str(n)) for n in range(20)])
    wait_until_stable(log)
    place = tmp_path / "archive"
    assert told("archive", log.name, place, "--verify")["damaged"] == []
    assert told("archive", log.name, place)["written"] == 0
    done = told("replay", place, "--queue", queue.name, "--where", "int(key) >= 15", "--check")
    assert (done["read"], done["written"]) == (20, 5)
    next(place.glob("day=*/*.parquet")).unlink()
    assert len(told("archive", log.name, place, "--verify", code=1)["damaged"]) == 1


def test_redrive(told, queue):
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(1, wait=timedelta(seconds=10))
        message.dead("no")
        assert told("redrive", queue.name, "--where", "reason = 'yes'")["written"] == 0
        assert told("redrive", queue.name)["written"] == 1
        (message,) = consumer.receive(1, wait=timedelta(seconds=10))
        assert message.body == b"x"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("enqueue", "{orders}"), "give a queue or a log"),
        (("enqueue", "{orders}", "--queue", "nowhere"), "nowhere"),
        (("enqueue", "{orders}", "--queue", "{queue}", "--set", "topic=who"), "no column topic"),
        (("enqueue", "{orders}", "--queue", "{queue}", "--set", "body"), "write NAME=VALUE"),
        (("enqueue", "{orders}", "--queue", "{queue}", "--set", "key=a", "--set", "key=b"), "given twice"),
        (("enqueue", "{orders}", "--queue", "{queue}", "--id", "who"), "same in every run"),
        (("report",), "give a queue, a log or histories"),
        (("archive", "nowhere", "x"), "nowhere"),
        (("replay", ".", "--queue", "{queue}"), "not an archive"),
        (("redrive", "{queue}.dead"), "dead-letter queue"),
        (("stream", "l", "--checkpoint", "c", "--parquet", "p", "--queue", "{queue}"), "give one of"),
    ],
    ids=str,
)
def test_mistakes_have_exit_code_2(run, queue, orders, args, said):
    code, out, err = run(*(text.format(queue=queue.name, orders=orders) for text in args))
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert queue.stats(exact=True).live == 0


def test_as_a_process(url, queue, orders):
    """With a session of its own, and nothing but JSON on standard output; an editable install is found."""
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    command = [
        sys.executable, "-m", "cqueue", "--json", "spark", "enqueue", str(orders), "--queue", queue.name,
        "--set", "body=who", "--id", "who", "--due", at, "--master", "local[1]",
        "--conf", "spark.sql.shuffle.partitions=1",
    ]  # fmt: skip
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYSPARK_PYTHON"}}
    done = subprocess.run(
        command, env={**env, "CQUEUE_URL": url}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] == 10
    assert queue.stats(exact=True).live == 5


def test_a_mistake_in_sql_is_one_line(url, queue):
    """As a process: behind what Spark says when it starts there is the error, and no trace of it."""
    command = [
        sys.executable, "-m", "cqueue", "spark", "redrive", queue.name, "--where", "nothing = 1",
        "--master", "local[1]",
    ]  # fmt: skip
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYSPARK_PYTHON"}}
    done = subprocess.run(
        command, env={**env, "CQUEUE_URL": url}, capture_output=True, text=True, check=False
    )
    _, said = done.stderr.split("Error: ")
    assert (done.returncode, said.count("\n")) == (2, 1), done.stderr
    assert "with name `nothing` cannot be resolved" in said
    assert "Traceback" not in done.stderr
    assert '{"ts"' not in done.stderr


def test_without_the_extra_it_says_what_to_install():
    """A Python without PySpark: the help is there, and a job says what it needs."""
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pyspark' else find(name, *a)\n"
        "sys.modules['pyspark'] = None\n"
        "from cqueue.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    for args in (("enqueue", "x.csv", "--queue", "q"), ("report", "--queue", "q"), ("redrive", "q")):
        done = subprocess.run(
            [sys.executable, "-c", code, "spark", *args], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert "cassandra-cqueue[spark]" in done.stderr
    listed = subprocess.run(
        [sys.executable, "-c", code, "spark", "--help"], capture_output=True, text=True, check=False
    )
    assert (listed.returncode, "redrive" in listed.stdout) == (0, True)
