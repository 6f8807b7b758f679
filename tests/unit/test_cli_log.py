"""`cqueue log`: each command, its JSON, what it says to mistakes, and how a tail ends."""

import base64
import io
import os
import signal
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest

from cqueue import Follower, Log, LogConfig, Record, connect, ids
from cqueue.cli import log_read
from cqueue.cli.interrupts import handled_by
from cqueue.cli.render import BodyPrinter
from cqueue.errors import AppendUnknown, BodyTooLarge, Unavailable
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.scanner import Scanner


@pytest.fixture(autouse=True)
def _stable_at_once(monkeypatch):
    """What is appended can be read at once: one process has no other appender to wait for."""
    monkeypatch.setattr(LogSpec, "horizon", lambda _, began_us: ids.highest_at(began_us))


@pytest.fixture
def log(cli):
    """A log called events."""
    assert cli("log", "create", "events", "--partitions", "4").code == 0


def bodies(said):
    assert said.code == 0, said.err
    return [record["body"] for record in said.json_lines]


# ── logs ──


def test_create_takes_every_setting(cli, cli_url):
    """Whatever LogConfig knows can be given, and arrives."""
    wanted = LogConfig(partitions=3, ttl=timedelta(days=2), time_shard=timedelta(minutes=1))
    assert {field.name for field in fields(LogConfig)} == {"partitions", "ttl", "time_shard"}
    said = cli("log", "create", "e", "--partitions", 3, "--ttl", "2d", "--time-shard", "1m", "--json")
    assert said.json == {"log": "e", "partitions": 3, "ttl_ms": 172_800_000, "time_shard_ms": 60_000}
    with connect(cli_url) as client:
        assert client.log("e").config == wanted


def test_a_log_may_keep_records_for_ever(cli):
    assert "for ever" in cli("log", "create", "e", "--ttl", "forever").out
    assert cli("--json", "log", "show", "e").json["ttl_ms"] is None
    assert "for ever" in cli("log", "show", "e").out


def test_creating_again(cli):
    """A script may be run twice."""
    cli("log", "create", "e")
    assert cli("log", "create", "e").code == 2
    assert cli("log", "create", "e", "--exist-ok").code == 0
    assert "another configuration" in cli("log", "create", "e", "--exist-ok", "--ttl", "1d").err
    cli("log", "alter", "e", "--ttl", "1d")
    assert cli("log", "create", "e", "--exist-ok", "--partitions", "16").code == 0
    assert "ttl is 1d, not 7d" in cli("log", "create", "e", "--exist-ok", "--ttl", "7d").err  # the default


def test_list(cli):
    assert "no log yet" in cli("log", "list").err
    assert cli("--json", "log", "list").json == []
    cli("log", "create", "b")
    cli("log", "create", "a", "--ttl", "forever")
    assert [row["log"] for row in cli("log", "list", "--json").json] == ["a", "b"]
    lines = cli("log", "list").out.splitlines()
    assert "partitions" in lines[0]
    assert "for ever" in lines[1]
    assert "7d" in lines[2]


@pytest.mark.usefixtures("log")
def test_alter(cli):
    assert cli("--json", "log", "alter", "events", "--partitions", 8).json["partitions"] == 8
    assert cli("--json", "log", "alter", "events", "--ttl", "forever").json["ttl_ms"] is None
    assert "only become more" in cli("log", "alter", "events", "--partitions", 4).err
    nothing = cli("log", "alter", "events")
    assert (nothing.code, "--ttl" in nothing.err) == (2, True)


@pytest.mark.usefixtures("log")
def test_delete_asks(cli):
    """Nothing goes by accident; with --yes it goes with all its records."""
    cli("log", "append", "events", "t", "x")
    assert cli("log", "delete", "events").code == 2
    assert cli("log", "delete", "events", "--yes", "--json").json == {"log": "events", "deleted": True}
    assert [log["log"] for log in cli("--json", "log", "list").json] == ["cqueue.audit"]


@pytest.mark.parametrize(
    "args",
    [
        ("show", "evnts"),
        ("alter", "evnts", "--ttl", "1d"),
        ("delete", "evnts", "--yes"),
        ("append", "evnts", "t", "x"),
        ("append", "evnts", "t", "--lines"),
        ("tail", "evnts"),
        ("scan", "evnts"),
        ("stats", "evnts"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("log")
def test_a_mistyped_name_gets_the_nearest_one(cli, args):
    said = cli("log", *args)
    assert (said.code, said.out) == (2, "")
    assert "Did you mean 'events'?" in said.err


def test_where_there_is_no_log_it_says_how_to_make_one(cli):
    assert "`cqueue log create events` makes one" in cli("log", "scan", "events").err


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_who_deletes_what_is_not_there_is_not_told_to_make_it(cli, kind):
    said = cli(kind, "delete", "nope", "--yes")
    assert (said.code, said.err) == (2, f"Error: There is no {kind} 'nope': there is none yet.\n")


@pytest.mark.usefixtures("log")
def test_stats(cli):
    """What there is of an empty log, and of one with records."""
    empty = cli("--json", "log", "stats", "events").json
    assert empty == {
        "log": "events",
        "partitions": 4,
        "time_shards": 0,
        "cassandra_partitions": 0,
        "oldest": None,
        "newest": None,
        "per_second": 0.0,
    }
    cli("log", "append", "events", "t", "y", "--partition", "0")
    assert "0.017" in cli("log", "stats", "events").out  # one a minute
    cli("log", "append", "events", "t", "--lines", stdin=b"x\n" * 60)
    full = cli("--json", "log", "stats", "events").json
    assert full["time_shards"] in {1, 2}
    assert 1 <= full["cassandra_partitions"] <= 4
    assert datetime.fromisoformat(full["oldest"]) < datetime.fromisoformat(full["newest"])
    assert 0.1 < full["per_second"] < 2
    assert "per second" in cli("log", "stats", "events").out


# ── append ──


@pytest.mark.usefixtures("log")
def test_append_prints_ids(cli):
    """One a record, and each is a position."""
    said = cli("log", "append", "events", "orders", "one", "two", "--key", "k", "--header", "a=1")
    first, second = said.out.split()
    (two,) = cli("--json", "log", "scan", "events", "--from", first).json_lines
    assert (two["id"], two["topic"], two["key"], two["headers"]) == (second, "orders", "k", {"a": "1"})
    (told,) = cli("--json", "log", "append", "events", "t", "x", "--partition", "3").json_lines
    assert (told["log"], told["topic"], told["partition"]) == ("events", "t", 3)


@pytest.mark.usefixtures("log")
def test_append_reads_standard_input_a_file_or_lines(cli, tmp_path):
    (tmp_path / "body").write_bytes(b"\xff\x00")
    cli("log", "append", "events", "t", "-", stdin=b"two\nlines\n")
    cli("log", "append", "events", "t", "--file", tmp_path / "body")
    said = cli("log", "append", "events", "t", "--lines", "--json", stdin=b"a\nb\r\n\nd")
    assert said.json == {
        "log": "events",
        "appended": 4,
        "lines": 4,
        "unknown": 0,
        "interrupted": False,
        "failed": [],
    }
    (tmp_path / "lines").write_bytes(b"e\n")
    one = cli("log", "append", "events", "t", "--lines", "--file", tmp_path / "lines")
    assert one.out == "1 record appended to events.\n"
    found = cli("--json", "log", "scan", "events").json_lines
    assert [(record["body"], record["encoding"]) for record in found] == [
        ("two\nlines\n", "utf-8"),
        (base64.b64encode(b"\xff\x00").decode(), "base64"),
        *((text, "utf-8") for text in ("a", "b", "", "d", "e")),
    ]


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("t",), "Nothing to append"),
        (("t", "x", "--file", "f"), "not both"),
        (("t", "x", "--lines"), "leave the body out"),
        (("t", "x", "-"), "stands alone"),
        (("t", "--file", "/nowhere/f"), "cannot be read"),
        (("", "x"), "topic is ''"),
        (("t" * 1001, "x"), "1 to 1,000 characters"),
        (("t", "x", "--partition", "4"), "the log has 0 to 3"),
        (("t", "x", "--partition", "-1"), "the log has 0 to 3"),
        (("t", "x", "--key", ""), "key is ''"),
        (("t", "x", "--header", "a"), "NAME=VALUE"),
    ],
)
@pytest.mark.usefixtures("log")
def test_a_mistake_is_2_and_appends_nothing(cli, args, hint):
    said = cli("log", "append", "events", *args)
    assert (said.code, said.out) == (2, "")
    assert hint in " ".join(said.err.replace("│", " ").split())
    assert cli("--json", "log", "scan", "events").out == ""


@pytest.mark.usefixtures("log")
def test_a_body_that_is_too_long_is_2(cli):
    said = cli("log", "append", "events", "t", "-", stdin=b"x" * (1 << 20) + b"x")
    assert (said.code, "1,048,576" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("error", "code"), [(BodyTooLarge("x"), 2), (Unavailable("x"), 3), (AppendUnknown("x", []), 4)]
)
@pytest.mark.parametrize("args", [("a", "b", "c"), ("--lines",)])
@pytest.mark.usefixtures("log")
def test_a_record_that_fails_is_told_and_the_others_are_appended(cli, monkeypatch, args, error, code):
    append_many = Log.append_many

    def failing(self, records):
        result = append_many(self, [records[0], records[2]])
        result.failed = [(1, error)]
        return result

    monkeypatch.setattr(Log, "append_many", failing)
    assert cli("log", "append", "events", "t", *args, stdin=b"a\nb\nc\n").code == code
    assert bodies(cli("--json", "log", "scan", "events")) == ["a", "c"]


@pytest.mark.usefixtures("log")
def test_an_append_that_is_interrupted_or_unknown_says_what_may_be_there(cli, monkeypatch):
    for error, code, text in (
        (KeyboardInterrupt(), 130, "The records may be appended or not; `cqueue log scan events` shows"),
        (AppendUnknown("who knows", ["AAB"]), 4, "Ids to look for: AAB."),
    ):
        monkeypatch.setattr(Log, "append_many", Mock(side_effect=error))
        said = cli("log", "append", "events", "t", "x")
        assert (said.code, text in said.err) == (code, True)


@pytest.mark.usefixtures("log")
def test_each_record_in_doubt_is_told_with_its_ids(cli, monkeypatch):
    failed = [
        (0, AppendUnknown("who knows", ["AAB"])),
        (1, Unavailable("x")),
        (2, AppendUnknown("nor I", ["AAC"])),
    ]
    monkeypatch.setattr(Log, "append_many", Mock(return_value=Mock(ids=[None] * 3, failed=failed)))
    said = cli("log", "append", "events", "t", "a", "b", "c")
    assert (said.code, "who knows\nIds to look for: AAB, AAC." in said.err) == (4, True)


# ── scan ──


@pytest.fixture
def filled(cli_url, log):  # noqa: ARG001 - it makes the log
    """Twelve records of three topics in four partitions; their ids."""
    with connect(cli_url) as client:
        records = [Record(f"t{n % 3}", b"%d" % n, f"k{n}", n % 4) for n in range(12)]
        return [client.log("events").append_many([record]).ids[0] for record in records]


@pytest.mark.usefixtures("filled")
def test_scan_prints_bodies_in_order(cli):
    """In a pipe a body a line and nothing else."""
    said = cli("log", "scan", "events")
    assert (said.code, said.out.split(), said.err) == (0, [str(n) for n in range(12)], "")


def test_scan_as_json_has_a_fixed_shape(cli, filled):
    (record,) = cli("log", "scan", "events", "--limit", "1", "--json").json_lines
    assert list(record) == ["id", "time", "partition", "topic", "key", "headers", "body", "encoding"]
    assert (record["id"], record["partition"], record["topic"], record["key"]) == (filled[0], 0, "t0", "k0")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--limit", "3"), [0, 1, 2]),
        (("--limit", "3", "--reverse"), [11, 10, 9]),
        (("--topic", "t1"), [1, 4, 7, 10]),
        (("--topic", "t1", "--topic", "t2", "--limit", "3"), [1, 2, 4]),
        (("--partition", "2"), [2, 6, 10]),
        (("--partition", "2", "--partition", "0", "--topic", "t0"), [0, 6]),
        (("--from", "1h"), range(12)),
        (("--from", "2020-01-01T00:00Z"), range(12)),
        (("--to", "2020-01-01T00:00Z"), []),
        (("--from", "latest"), []),
        (("--from", "0s"), []),
        (("--topic", "nobody's"), []),
    ],
    ids=str,
)
@pytest.mark.usefixtures("filled")
def test_scan_is_bounded(cli, args, expected):
    """A topic that nobody uses is an empty result: topics are not declared anywhere."""
    assert bodies(cli("--json", "log", "scan", "events", *args)) == [str(n) for n in expected]


def test_scan_goes_from_one_record_to_another(cli, filled):
    """Without the first, with the last; from a record to itself there is none, and back is a mistake."""
    assert cli("log", "scan", "events", "--from", filled[3], "--to", filled[5]).out.split() == ["4", "5"]
    said = cli("log", "scan", "events", "--from", filled[5], "--to", filled[5])
    assert (said.code, said.out) == (0, "")
    said = cli("log", "scan", "events", "--from", filled[5], "--to", filled[3])
    assert (said.code, "--from comes after --to" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("--from", "yesterday"), "is not a position"),
        (("--from", "2030-01-31T08:00"), "no time zone"),
        (("--to", "2030-13-31T08:00Z"), "not a time"),
        (("--from", "5x"), "not a duration"),
        (("--from", "1h", "--to", "2h"), "--from comes after --to"),
        (("--from", "latest", "--to", "10m", "--reverse"), "--from comes after --to"),
        (("--from", "2030-01-31T08:00Z", "--to", "2030-01-31T07:59Z"), "--from comes after --to"),
        (("--limit", "0"), "--limit"),
        (("--partition", "4"), "the log has 0 to 3"),
        (("--topic", ""), "topic is ''"),
        (("--arrow", "a", "--parquet", "b"), "not both"),
        (("--arrow", "/nowhere/a"), "cannot be written"),
        (("--arrow", "a" * 300), "cannot be written"),
        (("--arrow", "."), "is a directory"),
        (("--parquet", "/"), "is a directory"),
    ],
)
@pytest.mark.usefixtures("filled")
def test_a_scan_of_what_cannot_be_is_2(cli, args, hint):
    said = cli("log", "scan", "events", *args)
    assert (said.code, said.out) == (2, "")
    assert hint in " ".join(said.err.replace("│", " ").split())


@pytest.mark.usefixtures("filled")
def test_a_scan_replaces_no_pipe_or_device(cli, tmp_path):
    """`--arrow /dev/stdout`, said by root, would take the device away from the whole machine."""
    os.mkfifo(tmp_path / "pipe")
    said = cli("log", "scan", "events", "--arrow", "pipe")
    assert (said.code, "is no regular file" in said.err) == (2, True)
    assert (tmp_path / "pipe").is_fifo()


def test_the_id_of_another_log_is_no_position(cli, filled):
    cli("log", "create", "other")
    said = cli("log", "scan", "other", "--from", filled[0])
    assert (said.code, "not one of log" in said.err) == (2, True)


@pytest.mark.usefixtures("log")
def test_an_empty_scan_is_0_and_a_remark(cli):
    said = cli("log", "scan", "events")
    assert (said.code, said.out) == (0, "")
    assert "no such record" in said.err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("filled")
def test_an_export_that_is_cut_off_leaves_no_file(cli, monkeypatch, tmp_path, sent):
    """Also by `kill` or `timeout`."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(Scanner, "to_arrow", lambda _: signal.raise_signal(sent) or iter(()))
    with handled_by(lambda *_: None, sent):
        assert cli("log", "scan", "events", "--arrow", "out").code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["earliest", "latest", "soon"])
def test_an_end_is_a_time_or_an_id(cli, to):
    said = cli("log", "scan", "events", "--to", to)
    assert said.code == 2
    assert f"Invalid value for '--to': '{to}' is not a position. Write a time" in said.err


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.usefixtures("filled")
def test_scan_writes_a_file_for_data_frames(cli, tmp_path, kind):
    """The whole of it, or none: it has its name when it is complete."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "records"
    said = cli("log", "scan", "events", f"--{kind}", file, "--topic", "t1", "--json")
    assert said.json == {"file": str(file), "rows": 4}
    read = (
        (lambda: pyarrow.ipc.open_file(file).read_all())
        if kind == "arrow"
        else (lambda: parquet.read_table(file))
    )
    assert read()["body"].to_pylist() == [b"1", b"4", b"7", b"10"]
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


# ── tail ──


def interrupt_after(monkeypatch, count):
    """Raise Ctrl-C once `count` records have been printed."""
    record, printed = BodyPrinter.print, []

    def printing(self, one):
        record(self, one)
        printed.append(one)
        if len(printed) == count:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(BodyPrinter, "print", printing)


@pytest.mark.parametrize("latency", [(), ("--low-latency",)])
@pytest.mark.usefixtures("filled")
def test_tail_prints_until_ctrl_c_and_says_how_to_go_on(cli, monkeypatch, latency):
    interrupt_after(monkeypatch, 4)
    said = cli("log", "tail", "events", "--from", "earliest", "--topic", "t2", *latency)
    assert (said.code, said.out.split()) == (130, ["2", "5", "8", "11"])
    assert "4 records printed." in said.err
    assert "--from A" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(("args", "hint"), [((), True), (("--reverse",), False)])
@pytest.mark.usefixtures("filled")
def test_a_scan_that_is_cut_off_says_how_to_go_on_unless_it_goes_back(cli, monkeypatch, args, hint):
    """--from begins behind a record; older ones are not there."""
    interrupt_after(monkeypatch, 1)
    said = cli("log", "scan", "events", *args)
    assert (said.code, "12 records printed." in said.err, "--from" in said.err) == (130, True, hint)


@pytest.mark.usefixtures("filled")
def test_a_scan_onto_a_full_disk_does_not_go_on_behind_what_the_disk_lacks(cli, monkeypatch):
    """Records in a buffer are not printed: who went on behind them would lose them."""

    class Full(io.StringIO):
        def flush(self):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("sys.stdout", Full())
        said = cli("log", "scan", "events")
    assert (said.code, "--from" in said.err) == (1, False)
    assert "0 records printed. More may have been written out." in said.err


def test_tail_outlives_an_outage(cli, filled, monkeypatch):
    monkeypatch.setattr("cqueue.cli.outage.PAUSE_S", 0)
    poll, errors = Follower.poll, [Unavailable("no host is up")]

    def poll_or_fail(follower, *args):
        if errors:
            raise errors.pop()
        return poll(follower, *args)

    monkeypatch.setattr(Follower, "poll", poll_or_fail)
    interrupt_after(monkeypatch, 2)
    said = cli("log", "tail", "events", "--from", filled[7], "--partition", "0", "--partition", "1")
    assert said.out.split() == ["8", "9"]
    assert "no host is up. Trying again" in said.err


def test_tail_goes_on_where_the_last_one_stopped(cli, filled, monkeypatch):
    interrupt_after(monkeypatch, 2)
    said = cli("log", "tail", "events", "--from", filled[7], "--partition", "0", "--partition", "1", "--json")
    assert [record["body"] for record in said.json_lines] == ["8", "9"]


@pytest.mark.usefixtures("filled")
def test_tail_begins_with_what_is_new(cli, cli_url, monkeypatch):
    """By default nothing old is printed."""
    interrupt_after(monkeypatch, 1)
    with connect(cli_url) as client:

        def append_first(follower, *args):
            monkeypatch.setattr(type(follower), "poll", original)
            client.log("events").append("t", b"new")
            return original(follower, *args)

        original = Follower.poll
        monkeypatch.setattr(Follower, "poll", append_first)
        assert cli("log", "tail", "events").out == "new\n"


@pytest.mark.usefixtures("filled")
def test_what_people_see(cli, monkeypatch):
    """A line about each record, and nothing that commands the terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    cli("log", "append", "events", "t", "\x1b[2J", "--key", "k", "--header", "a=1")
    out = cli("log", "scan", "events", "--limit", "1", "--reverse").out
    assert "partition" in out
    assert "key k" in out
    assert "a=1" in out
    assert "\\x1b[2J" in out


def test_a_time_ago_is_by_this_machines_clock():
    before = datetime.now(UTC)
    assert (
        timedelta()
        <= log_read.parse_position("10m") - (before - timedelta(minutes=10))
        < timedelta(minutes=1)
    )
