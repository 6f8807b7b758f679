"""`cqueue send`, `receive`, `peek`, `stats`: every form, its output, and what happens in the middle."""

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from typing import get_args

import pytest

from cqueue import Consumer, Queue, connect, quarantine, unique
from cqueue.cli import receive as receive_command
from cqueue.cli import send as send_command
from cqueue.cli import send_lines
from cqueue.cli.context import CliContext
from cqueue.cli.main import main
from cqueue.cli.outage import Outage
from cqueue.cli.render import BodyPrinter
from cqueue.cli.values import counted
from cqueue.errors import (
    AckUnknown,
    BadInput,
    BodyTooLarge,
    Closed,
    LeaseLost,
    OutcomeUnknown,
    QueueNotFound,
    Refused,
    SendUnknown,
    Unavailable,
)
from cqueue.message import short
from cqueue.store.quarantine import Damage

pytestmark = pytest.mark.usefixtures("queue")


@pytest.fixture
def queue(cli):
    """A queue called q."""
    cli("queue", "create", "q", "--visibility", "2s")


def bodies(said):
    return [message["body"] for message in said.json_lines]


# ── send ──


def test_send_prints_the_id(cli, cli_url):
    said = cli("send", "q", "hello")
    with connect(cli_url) as client:
        assert client.queue("q").find(said.out.strip()).body == b"hello"
    assert cli("--json", "send", "q", "x").json.keys() == {"queue", "id"}


class Typed(io.BytesIO):
    """Standard input of a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("source", "bars"), [(io.BytesIO, 1), (Typed, 0)])
def test_no_bar_is_drawn_over_lines_that_are_typed(cli_url, capsys, monkeypatch, source, bars):
    """Where they come from a file or a pipe, there is one."""
    drawn, bar = [], CliContext.bar
    monkeypatch.setattr(CliContext, "bar", lambda *args: drawn.append(args) or bar(*args))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(source(b"one\n")))
    assert main(["--url", cli_url, "send", "q", "--lines"]) == 0
    assert (len(drawn), capsys.readouterr().out) == (bars, "1 message sent to q.\n")


def test_send_reads_standard_input_or_a_file(cli, tmp_path):
    """Whole, as bytes, to the last newline."""
    (tmp_path / "body").write_bytes(b"\xff\x00")
    cli("send", "q", "-", stdin=b"two\nlines\n")
    cli("send", "q", "--file", tmp_path / "body")
    cli("send", "q", "")
    found = cli("--json", "receive", "q").json_lines
    assert {(m["body"], m["encoding"]) for m in found} == {
        ("two\nlines\n", "utf-8"),
        (base64.b64encode(b"\xff\x00").decode(), "base64"),
        ("", "utf-8"),
    }


def test_send_takes_every_option(cli):
    cli("send", "q", "x", "--priority", 3, "--header", "a=1", "--header", "b=2", "--delay", "1h")
    cli("send", "q", "y", "--due", "2030-01-31T08:00Z", "--ttl", "2d")
    x, y = sorted(cli("--json", "peek", "q").json_lines, key=lambda message: message["body"])
    assert (x["priority"], x["headers"], x["state"]) == (3, {"a": "1", "b": "2"}, "delayed")
    late = datetime.fromisoformat(x["due"]) - datetime.fromisoformat(x["sent_at"])
    assert abs(late - timedelta(hours=1)) < timedelta(minutes=1)
    assert y["due"] == "2030-01-31T08:00:00+00:00"


def test_send_sends_a_unique_message_once(cli):
    """A second one is an error that names the first; or it is skipped, or takes its place."""
    first = cli("send", "q", "1", "--unique", "k").out.strip()
    said = cli("send", "q", "2", "--unique", "k")
    assert said.code != 0
    assert first in said.err.replace("\n", "").replace("│", "").replace(" ", "")
    said = cli("--json", "send", "q", "2", "--unique", "k", "--while", "ever", "--on-conflict", "skip")
    assert said.json == {"queue": "q", "id": first, "skipped": True}
    said = cli("send", "q", "3", "--unique", "k", "--within", "1h", "--on-conflict", "replace")
    assert said.out.strip() != first
    assert [m["body"] for m in cli("--json", "peek", "q").json_lines] == ["3"]


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("x", "--while", "ever"), "give --unique"),
        (("x", "--unique", "k", "--while", "always"), "'pending', 'running', 'ever'"),
        (("x", "--unique", "k", "--on-conflict", "throttle"), "say within how long"),
        (("x", "--unique", "k", "--on-conflict", "drop"), "'--on-conflict': 'drop' is not one of"),
        (
            ("x", "--unique", "k", "--within", "1m", "--on-conflict", "throttle", "--while", "pending"),
            "throttle goes with 'ever', not with 'pending'",
        ),
        (("--lines", "--unique", "k"), "--lines"),
        ((), "Nothing to send"),
        (("x", "--file", "f"), "not both"),
        (("x", "--lines"), "leave the body out"),
        (("--file", "/nowhere/f"), "cannot be read"),
        (("--file", "."), "cannot be read"),
        (("x", "--delay", "soon"), "1h30m"),
        (("x", "--due", "2030-01-31T08:00"), "time zone"),
        (("x", "--delay", "1s", "--due", "2030-01-31T08:00Z"), "not both"),
        (("x", "--delay", "4000d"), "10 years"),
        (("x", "--priority", "10"), "priority"),
        (("x", "--header", "a"), "NAME=VALUE"),
        (("x", "--ttl", "0"), "ttl"),
    ],
)
def test_a_mistake_is_2_and_sends_nothing(cli, args, hint):
    said = cli("send", "q", *args)
    assert (said.code, said.out) == (2, "")
    assert hint in " ".join(said.err.replace("│", " ").split())
    assert cli("--json", "stats", "q", "--exact").json[0]["live"] == 0


def test_a_body_that_is_too_long_is_2(cli):
    said = cli("send", "q", "-", stdin=b"x" * (1 << 20) + b"x")
    assert said.code == 2
    assert "1,048,576" in said.err


# ── send --lines ──


def test_each_line_is_a_message(cli, tmp_path):
    """LF and CR LF end a line; an empty line is one; the last needs no end."""
    said = cli("send", "q", "--lines", "--json", "--header", "a=1", stdin=b"one\ntwo\r\n\nfour")
    assert said.json == {
        "queue": "q",
        "sent": 4,
        "lines": 4,
        "unknown": 0,
        "interrupted": False,
        "failed": [],
    }
    (tmp_path / "lines").write_bytes(b"five\n")
    assert cli("send", "q", "--lines", "--file", tmp_path / "lines").out == "1 message sent to q.\n"
    found = cli("--json", "receive", "q").json_lines
    assert {m["body"]: m["headers"] for m in found} == {
        **{body: {"a": "1"} for body in ("one", "two", "", "four")},
        "five": {},
    }


def test_no_lines_are_no_messages(cli):
    assert cli("send", "q", "--lines", "-", "--json").json["lines"] == 0


def test_a_slow_pipe_is_not_kept_waiting():
    """Lines are sent as they come, not when a batch is full; a line may come in pieces."""

    class Pipe(io.BytesIO):
        pieces = iter([b"a\nb", b"c\n", b"d"])

        def read1(self, _size=-1):
            return next(self.pieces, b"")

    assert list(send_lines.batches(Pipe())) == [[b"a"], [b"bc"], [b"d"]]


def test_many_lines_go_in_several_batches(cli):
    lines = [f"line {n}" for n in range(2 * send_lines.BATCH + 1)]
    assert cli("--json", "send", "q", "--lines", stdin="\n".join(lines).encode()).json["sent"] == len(lines)
    assert sorted(cli("receive", "q", "--max", "5000").out.splitlines()) == sorted(lines)


def test_a_refused_line_is_named_and_the_others_are_sent(cli, monkeypatch):
    fail_entries(monkeypatch, {1: BodyTooLarge("too long")})
    said = cli("--json", "send", "q", "--lines", stdin=b"a\nb\nc\n")
    assert said.code == 2
    assert said.json["sent"] == 2
    assert said.json["failed"] == [{"line": 2, "error": "BodyTooLarge", "message": "too long"}]


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ({1: Unavailable("no node")}, 3),
        ({0: BodyTooLarge("x"), 1: Unavailable("x")}, 3),
        ({0: Unavailable("x"), 2: SendUnknown("who knows")}, 4),
    ],
)
def test_when_cassandra_fails_it_stops_and_says_where(cli, monkeypatch, errors, code):
    """What follows would fail too; the worst error decides the exit code."""
    fail_entries(monkeypatch, errors)
    monkeypatch.setattr(send_lines, "BATCH", 3)
    said = cli("send", "q", "--lines", stdin=b"x\n" * 9)
    assert said.code == code
    assert said.out == f"{counted(3 - len(errors), 'message')} sent to q.\n"
    assert "Stopped after line 3. Nothing after line 3 was sent." in said.err
    assert all(f"line {index + 1}:" in said.err for index in errors)


def test_a_message_that_may_be_sent_is_told_with_the_ids_to_look_for(cli, monkeypatch):
    """Else an operator who got exit code 4 could only send again, and perhaps have two."""
    fail_entries(monkeypatch, {0: SendUnknown("who knows", ["AAB", "AAC"])})
    said = cli("send", "q", "--task", "t:t", "--args", "[]")
    assert said.code == 4
    assert "Ids to look for: AAB, AAC; `cqueue find ID` shows what is there." in said.err
    assert json.loads(cli("--json", "send", "q", "--task", "t:t").err)["ids"] == ["AAB", "AAC"]
    assert "line 1: Ids to look for: AAB, AAC;" in cli("send", "q", "--lines", stdin=b"x").err
    assert cli("--json", "send", "q", "--lines", stdin=b"x").json["failed"][0]["ids"] == ["AAB", "AAC"]


@pytest.mark.parametrize("options", [("x",), ("--task", "t:t")], ids=str)
def test_a_send_that_is_interrupted_says_that_the_message_may_be_there(cli, monkeypatch, options):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Queue, "send", interrupted)
    monkeypatch.setattr(Queue, "send_many", interrupted)
    said = cli("send", "q", *options)
    assert said.code == 130
    assert "The message may be sent or not; `cqueue list q` shows what is there." in said.err


@pytest.mark.parametrize(
    ("error", "code", "unknown"),
    [(QueueNotFound("gone"), 2, 0), (Closed("closed"), 3, 0), (SendUnknown("who knows"), 4, 2)],
)
def test_a_batch_that_fails_as_a_whole_stops_it_too(cli, monkeypatch, error, code, unknown):
    """As when the queue is deleted meanwhile. Lines are in doubt only if the error leaves it open."""
    send_many, batches = Queue.send_many, []

    def failing(self, messages):
        batches.append(messages)
        if len(batches) % 2 == 0:
            raise error
        return send_many(self, messages)

    monkeypatch.setattr(Queue, "send_many", failing)
    monkeypatch.setattr(send_lines, "BATCH", 2)
    said = cli("--json", "send", "q", "--lines", stdin=b"x\n" * 6)
    assert (said.code, said.json["sent"], said.json["lines"], said.json["unknown"]) == (code, 2, 2, unknown)
    said = cli("send", "q", "--lines", stdin=b"x\n" * 6)
    assert (said.code, said.out) == (code, "2 messages sent to q.\n")
    doubt = "Lines 3 to 4 may be sent or not. " if unknown else ""
    assert f"Stopped after line 2. {doubt}Nothing after line {2 + unknown} was sent." in said.err
    assert len(bodies(cli("--json", "receive", "q"))) == 4


def test_many_failures_are_not_all_printed(cli, monkeypatch):
    fail_entries(monkeypatch, {index: BodyTooLarge("x") for index in range(12)})
    assert "and 2 more" in cli("send", "q", "--lines", stdin=b"x\n" * 12).err


def fail_entries(monkeypatch, errors):
    """In each send_many, the entries at these places fail."""
    send_many = Queue.send_many

    def failing(self, messages):
        result = send_many(self, [m for index, m in enumerate(messages) if index not in errors])
        result.failed = [(index, error) for index, error in errors.items() if index < len(messages)]
        return result

    monkeypatch.setattr(Queue, "send_many", failing)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_batch_end_and_says_how_far_it_came(cli, monkeypatch, sent):
    """What the remark says is what the queue holds, also after `timeout` and where a terminal is closed."""
    interrupt_in(monkeypatch, Queue, "send_many", times=1, sent=sent)
    monkeypatch.setattr(send_lines, "BATCH", 2)
    said = cli("send", "q", "--lines", stdin=b"1\n2\n3\n4\n")
    assert said.code == 130
    assert "Interrupted after line 2. Nothing after line 2 was sent." in said.err
    assert bodies(cli("--json", "receive", "q")) == ["1", "2"]


def test_a_second_ctrl_c_does_not_wait_and_names_the_lines_in_doubt(cli, monkeypatch):
    interrupt_in(monkeypatch, Queue, "send_many", times=2)
    said = cli("send", "q", "--lines", stdin=b"1\n2\n")
    assert said.code == 130
    assert "Lines 1 to 2 may be sent or not." in said.err


def interrupt_in(monkeypatch, kind, name, *, times, sent=signal.SIGINT):
    """Raise Ctrl-C, or another signal, some times before the method does its work."""
    original = getattr(kind, name)

    def interrupted(self, *args):
        for _ in range(times):
            signal.raise_signal(sent)
        return original(self, *args)

    monkeypatch.setattr(kind, name, interrupted)


# ── receive ──


def test_receive_prints_bodies_and_acks_them(cli):
    """In a pipe a body a line and nothing else; once printed they are gone."""
    for body in ("one", "two"):
        cli("send", "q", body)
    said = cli("receive", "q")
    assert (said.code, sorted(said.out.splitlines()), said.err) == (0, ["one", "two"], "")
    assert cli("--json", "stats", "q", "--exact").json[0]["live"] == 0


def test_receive_as_json_has_a_fixed_shape(cli):
    cli("send", "q", "größer", "--header", "a=1")
    (message,) = cli("receive", "q", "--json").json_lines
    assert list(message) == [
        "id",
        "body",
        "encoding",
        "headers",
        "priority",
        "due",
        "sent_at",
        "attempt",
        "visible_again",
    ]
    assert (message["body"], message["attempt"], message["headers"]) == ("größer", 1, {"a": "1"})


def test_receive_takes_at_most_max(cli):
    cli("send", "q", "--lines", stdin=b"x\n" * 12)
    assert len(cli("receive", "q").out.split()) == receive_command.DEFAULT_MAX
    assert len(cli("receive", "q", "--max", "1").out.split()) == 1
    assert len(cli("receive", "q", "--max", "9").out.split()) == 1


def test_an_empty_queue_is_0_and_a_remark(cli):
    said = cli("receive", "q", "--wait", "10ms")
    assert (said.code, said.out) == (0, "")
    assert "nothing that is due" in said.err


def test_no_ack_leaves_messages_to_their_timeout(cli, cli_clock):
    """They are neither gone nor available before."""
    cli("send", "q", "x")
    assert cli("receive", "q", "--no-ack").out == "x\n"
    assert cli("receive", "q").out == ""
    assert cli("--json", "peek", "q").json_lines[0]["state"] == "claimed"
    cli_clock(3)
    (again,) = cli("--json", "receive", "q", "--wait", "5s").json_lines
    assert again["attempt"] == 2


def test_nack_gives_messages_back_and_counts_the_attempt(cli):
    cli("send", "q", "x")
    assert cli("--json", "receive", "q", "--nack", "--max", "1").json_lines[0]["attempt"] == 1
    assert cli("--json", "receive", "q", "--wait", "1s").json_lines[0]["attempt"] == 2


def test_nack_receives_each_message_once(cli):
    """One call uses one attempt: it used to receive again what it gave back, until the message was dead."""
    for body in ("x", "y"):
        cli("send", "q", body)
    said = cli("--json", "receive", "q", "--nack", "--max", "1000")
    assert said.code == 0
    assert sorted((m["body"], m["attempt"]) for m in said.json_lines) == [("x", 1), ("y", 1)]
    assert cli("--json", "stats", "q", "--exact").json[0]["live"] == 2
    again = cli("--json", "receive", "q", "--wait", "1s").json_lines
    assert [m["attempt"] for m in again] == [2, 2], "they are free at once"


def test_nack_stops_where_a_timeout_has_passed(cli, monkeypatch):
    """A reader of the pipe that is slower than the visibility timeout does not use up attempts either."""
    receive, came = Consumer.receive, []

    def receive_twice(self, *args, **options):
        came.append(receive(self, *args, **options) or came[0])
        return came[-1]

    cli("send", "q", "x")
    monkeypatch.setattr(Consumer, "receive", receive_twice)
    assert cli("receive", "q", "--nack", "--max", "1000").out == "x\n"
    assert len(came) == 2


def test_nack_of_what_a_timeout_gave_back_is_done(cli, monkeypatch):
    """Nobody is told of an error where all is as it was asked for."""

    def lost(_self, _messages):
        raise LeaseLost("the visibility timeout passed")

    cli("send", "q", "x")
    monkeypatch.setattr(Consumer, "nack", lost)
    assert cli("receive", "q", "--nack").code == 0


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("--nack", "--ack"), "not both"),
        (("--nack", "--follow"), "--follow has none"),
        (("--nack", "--no-ack"), "not both"),
        (("--follow", "--wait", "1s"), "--wait"),
        (("--max", "0"), "--max"),
        (("--wait", "soon"), "1h30m"),
    ],
)
def test_a_wrong_combination_receives_nothing(cli, args, hint):
    cli("send", "q", "x")
    said = cli("receive", "q", *args)
    assert (said.code, said.out) == (2, "")
    assert hint in said.err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_follow_goes_on_until_a_signal(cli, monkeypatch, sent):
    """It ends with 130 and says that what was printed is acked; a script ends it by SIGTERM."""
    receive = Consumer.receive

    def receive_then_interrupt(self, *_args, **_options):
        messages = receive(self, 1)
        if not messages:
            signal.raise_signal(sent)
        return messages

    cli("send", "q", "--lines", stdin=b"1\n2\n3\n")
    monkeypatch.setattr(Consumer, "receive", receive_then_interrupt)
    said = cli("receive", "q", "--follow")
    assert (said.code, said.out) == (130, "1\n2\n3\n")
    assert "3 messages printed, 3 of them acked.\n" in said.err


def test_follow_outlives_an_outage_and_says_so_once(cli, monkeypatch):
    """It goes on until Ctrl-C, so a restart of Cassandra does not end it; a refusal does.

    It says so within five seconds, as a receive is silent as long as it waits.
    """
    monkeypatch.setattr("cqueue.cli.outage.PAUSE_S", 0)
    receive, errors = Consumer.receive, [Unavailable("no host is up"), OutcomeUnknown("no answer"), None]

    def receive_or_fail(self, _most, wait):
        assert wait <= timedelta(seconds=5)
        error = errors.pop(0)
        if error is not None:
            raise error
        errors.append(Refused("no permission"))
        return receive(self, 1)

    cli("send", "q", "x")
    monkeypatch.setattr(Consumer, "receive", receive_or_fail)
    said = cli("receive", "q", "--follow")
    assert said.out == "x\n"
    assert said.err.count("no host is up. Trying again until Cassandra answers, or Ctrl-C.") == 1
    assert "no answer" not in said.err
    assert "Cassandra answers again." in said.err
    assert "no permission" in said.err
    assert said.code == 3


def test_the_end_of_an_outage_is_said_before_the_next_message(capsys, monkeypatch):
    """Nobody waits out a whole receive to learn that Cassandra answers."""
    monkeypatch.setattr("cqueue.cli.outage.PAUSE_S", 0)
    errors, outage = [Unavailable("no host is up")], Outage(CliContext())

    def read(wait):
        assert errors or not wait
        if errors:
            raise errors.pop()
        return []

    for _ in range(2):
        assert outage.outlive(read, timedelta(hours=1)) == []
    assert "Cassandra answers again." in capsys.readouterr().err


def test_ctrl_c_between_printing_and_acking_waits_for_the_ack(cli, monkeypatch):
    """Nothing is printed and yet delivered again."""
    interrupt_in(monkeypatch, BodyPrinter, "print", times=1)
    cli("send", "q", "x")
    said = cli("receive", "q", "--max", "1")
    assert (said.code, said.out) == (130, "x\n")
    assert "1 message printed, 1 of them acked." in said.err
    assert cli("--json", "stats", "q", "--exact").json[0]["live"] == 0


FULL_PIPE = """
import os, select, signal, sys, threading
import cqueue
from cqueue.cli.main import main

def terminate_when_full():
    pipe = select.poll()
    pipe.register(1, select.POLLOUT)
    while pipe.poll(0):
        threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=terminate_when_full, daemon=True).start()
with cqueue.connect("memory://full") as client:
    client.create_queue("q").send_many([cqueue.Message(b"x" * 2000) for _ in range(100)])
    sys.exit(main(["--url", "memory://full", "receive", "q", "--max", "100", "--wait", "2s"]))
"""


def test_one_sigterm_ends_it_where_the_pipe_is_full():
    """Nobody reads on; what was not taken is said not to be acked."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FULL_PIPE], **pipes) as process:
        try:
            assert process.wait(timeout=30) == 130
            said = process.stderr.read()
            assert b"0 messages printed, 0 of them acked. More may have been written out; it is not" in said
        finally:
            process.kill()


FULL_IN_ACK = """
import fcntl, os, signal, sys
import cqueue
from cqueue.cli.main import main
from cqueue.consumer import Consumer

fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 4096)
ack = Consumer.ack

def ack_all(consumer, messages):
    os.kill(os.getpid(), signal.SIGTERM)
    ack(consumer, messages)

Consumer.ack = ack_all
with cqueue.connect("memory://full") as client:
    client.create_queue("q").send(b"x" * 4095)
    sys.exit(main(["--url", "memory://full", "receive", "q"]))
"""


def test_one_sigterm_cuts_no_ack_where_the_pipe_is_just_full():
    """The output has taken all that was printed, and so the ack is finished and told."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FULL_IN_ACK], **pipes) as process:
        try:
            assert process.wait(timeout=30) == 130
            assert b"1 message printed, 1 of them acked." in process.stderr.read()
        finally:
            process.kill()


def test_an_ack_that_fails_is_said(cli, monkeypatch):
    def failing(_self, _messages):
        raise AckUnknown("no answer")

    cli("send", "q", "x")
    monkeypatch.setattr(Consumer, "ack", failing)
    said = cli("receive", "q")
    assert (said.code, said.out) == (4, "x\n")
    assert "1 message printed, 0 of them acked. The other 1 may come again." in said.err


def test_a_closed_pipe_acks_nothing_that_was_not_taken(cli, monkeypatch):
    """`cqueue receive … | head -1` gives back what head did not read."""

    def closed(_self, _message):
        raise BrokenPipeError(32, "Broken pipe")

    cli("send", "q", "x")
    monkeypatch.setattr(BodyPrinter, "print", closed)
    said = cli("receive", "q")
    assert said.code == 1
    assert "0 messages printed" in said.err
    monkeypatch.undo()


def test_who_waits_for_more_ends_with_the_reader_of_its_output(monkeypatch):
    """`cqueue log tail … | head -1` ends, and `receive --follow` asks for no further message."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        outage = Outage(CliContext())
        assert outage.outlive(lambda _wait: [1], timedelta()) == [1]
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            outage.outlive(lambda _wait: [2], timedelta())


def test_follow_ends_while_it_waits_for_more(cli_url, monkeypatch):
    """Its reader goes while the queue is empty, and it polls no further."""
    reader, writer = os.pipe()
    gone = []

    def wait(consumer, _left_s):
        gone.append(os.close(reader))
        assert consumer._receiver.inbox.sleep(20), "nobody ended the wait"

    monkeypatch.setattr("cqueue.cli.outage.PAUSE_S", 0.01)
    monkeypatch.setattr(Consumer, "_wait", wait)
    with os.fdopen(writer, "w") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert main(["--url", cli_url, "receive", "q", "--follow"]) == 1
    assert len(gone) == 1


class Full(io.StringIO):
    """Standard output to a disk that takes no more."""

    def write(self, _text):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize(
    ("output", "why"), [(Full(), "No space left on device"), (None, "standard output is closed")]
)
def test_output_that_cannot_be_written_is_no_bug(cli, monkeypatch, options, output, why):
    """The message is sent, or given back; the exit code is that of a closed pipe."""
    with monkeypatch.context() as full:
        full.setattr("sys.stdout", output)
        said = cli(*options, "send", "q", "x")
        if output is not None or options:  # else nobody wants to know: a job of cron's, say
            assert (said.code, "Traceback" in said.err) == (1, False)
            assert f"The output cannot be written: {why}." in said.err
        said = cli(*options, "receive", "q")
        assert (said.code, f"The output cannot be written: {why}." in said.err) == (1, True)
        assert ("0 messages printed, 0 of them acked." in said.err) == (not options)
    assert cli("receive", "q").out == "x\n"


@pytest.fixture
def unread():
    """A pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    with io.TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True) as out:
        yield out


@pytest.mark.parametrize("options", [(), ("--json",), ("--verbose",)], ids=str)
@pytest.mark.parametrize("output", ["full", "closed", "unread"])
def test_a_standard_error_that_takes_nothing_changes_no_exit_code(cli, monkeypatch, options, output, unread):
    """A script that collects errors on a full disk, or through a reader that ends, goes by the code."""
    stream = {"full": Full(), "closed": None, "unread": unread}[output]
    cli("send", "q", "x")
    for line, code, out in (
        ("stats nosuch", 2, False),
        ("receive q --nosuch", 2, False),
        ("receive q --max many", 2, False),
        ("nosuch", 2, False),
        ("receive q", 0, True),
        ("receive q", 0, False),
        ("stats q", 0, True),
    ):
        with monkeypatch.context() as full:
            full.setattr("sys.stderr", stream)
            said = cli(*options, *line.split())
        assert (said.code, bool(said.out)) == (code, out)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_of_another_encoding_shows_characters_that_it_lacks_escaped(cli, monkeypatch, encoding):
    """A terminal in Latin-1 made every emoji a traceback. JSON is valid in every encoding."""
    body = "grün 😀"
    cli("send", "q", body)
    with monkeypatch.context() as terminal:
        written = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
        terminal.setattr("sys.stdout", written)
        assert [cli(*words, "q").code for words in [("peek",), ("--json", "peek"), ("receive",)]] == [0, 0, 0]
    *table, line, printed = written.buffer.getvalue().splitlines()
    escaped = body.encode(encoding, "backslashreplace")
    assert (table[-1].endswith(escaped), printed, json.loads(line)["body"]) == (True, escaped, body)


# ── peek and stats ──


def test_peek_shows_states_and_takes_nothing(cli):
    cli("send", "q", "now")
    cli("send", "q", "late", "--delay", "1h")
    for _ in range(2):
        found = cli("--json", "peek", "q").json_lines
        assert [(m["body"], m["state"]) for m in found] == [("now", "ready"), ("late", "delayed")]
    assert (found[0]["attempts"], found[0]["task"], found[0]["next_at"]) == (0, None, found[0]["due"])
    assert len(cli("--json", "peek", "q", "--limit", "1").json_lines) == 1
    header, *lines = cli("peek", "q").out.splitlines()
    assert header.split() == ["id", "state", "next", "attempts", "task", "body"]
    assert lines[1].endswith("–     late")
    cli("send", "q", "urgent", "--priority", 3)
    assert "priority" in cli("peek", "q").out


def test_peek_says_when_a_message_comes_again(cli, cli_url):
    """With the attempts that it has had."""
    cli("send", "q", "x")
    with connect(cli_url) as client, client.queue("q").consumer() as consumer:
        consumer.receive()[0].nack(timedelta(hours=1))
    (found,) = cli("--json", "peek", "q").json_lines
    assert (found["state"], found["attempts"]) == ("waiting", 1)
    wait = datetime.fromisoformat(found["next_at"]) - datetime.fromisoformat(found["sent_at"])
    assert abs(wait - timedelta(hours=1)) < timedelta(minutes=1)


def test_peek_at_nothing(cli):
    assert "is empty" in cli("peek", "q").err
    assert cli("--json", "peek", "q").out == ""
    assert cli("peek", "q", "--limit", "0").code == 2


COUNTED = ("ready", "delayed", "claimed", "waiting", "dead")


def test_stats_count_exactly_when_asked(cli):
    cli("send", "q", "now")
    cli("send", "q", "late", "--delay", "1h")
    cli("receive", "q", "--no-ack")
    cli("send", "q", "more")
    (exact,) = cli("--json", "stats", "q", "--exact").json
    assert exact.pop("oldest").startswith("20")
    assert 0 <= exact.pop("oldest_age_s") < 60
    assert exact.pop("wide_rows") >= exact.pop("future_wide_rows") >= 1
    assert exact == {
        "queue": "q",
        "state": "active",
        "claimed": 1,
        "waiting": 0,
        "ready": 1,
        "delayed": 1,
        "live": 3,
        "quarantined": 0,
        "dead": 0,
        "exact": True,
        "at_least": [],
    }
    header, line = cli("stats", "q", "--exact").out.splitlines()
    assert header.split()[:9] == ["queue", "state", *COUNTED, "live", "wide"]
    assert line.split()[:8] == ["q", "active", "1", "1", "1", "0", "0", "3"]


def test_a_queue_that_is_named_twice_is_shown_once(cli):
    cli("queue", "create", "other")
    rows = cli("--json", "stats", "q", "other", "q").json
    assert [row["queue"] for row in rows] == ["q", "other"]


def test_stats_are_estimates_and_say_so(cli, cli_url, monkeypatch):
    """Ready, delayed, in flight, dead and the oldest age, without reading everything; more is `+`."""
    cli("send", "q", "late", "--delay", "1h")
    for body in ("one", "two", "three"):
        cli("send", "q", body)
    with connect(cli_url) as client, client.queue("q").consumer() as consumer:
        consumer.receive(1)[0].dead("no")
    with connect(cli_url) as client, client.queue("q").consumer() as consumer:
        consumer.receive(1)
        said = cli("stats", "q")
    header, line = said.out.splitlines()
    assert header.split() == ["queue", "state", *COUNTED, "oldest"]
    assert line.split()[:7] == ["q", "active", "~1", "~1", "~1", "~0", "~1"]
    assert re.fullmatch(r"\d+s", line.split()[7])
    assert "~ marks estimates" in said.err
    for name, value in (("PAGE", 1), ("MAX_IDS", 1), ("AT_ONCE", 1)):
        monkeypatch.setattr(f"cqueue.protocol.estimate.{name}", value)
    cli("send", "q", "one more")
    (row,) = cli("--json", "stats", "q").json
    assert "ready" in row["at_least"]
    assert f" {row['ready']}+ " in cli("stats", "q").out


def test_stats_without_a_name_are_of_all_queues(cli):
    cli("queue", "create", "p")
    names = [row["queue"] for row in cli("--json", "stats").json]
    assert names == ["p", "q"]
    assert cli("--json", "stats", "q.dead").json[0]["dead"] is None
    assert cli("stats", "q", "p").out.count("active") == 2


# ── by key ──


def test_messages_are_found_and_cancelled_by_their_key(cli):
    """In a keyed queue: a list, dead letters with it, and the number that was cancelled."""
    cli("queue", "create", "orders", "--keyed")
    cli("send", "orders", "one", "--key", "order-17", "--delay", "1h")
    cli("send", "orders", "-", "--lines", "--key", "order-17", stdin=b"two\nthree\n")
    cli("send", "orders", "--task", "shop:pay", "--key", "order-18")
    found = cli("--json", "find", "--key", "order-17", "--queue", "orders").json_lines
    assert [(one["body"], one["state"], one["key"]) for one in found] == [
        ("two", "ready", "order-17"),
        ("three", "ready", "order-17"),
        ("one", "delayed", "order-17"),
    ]
    assert "delayed" in cli("find", "--key", "order-17", "--queue", "orders").out
    said = cli("--json", "reschedule", "--key", "order-17", "--queue", "orders", "--in", "2h")
    assert said.json == {"queue": "orders", "key": "order-17", "rescheduled": 3, "failed": []}
    said = cli("--json", "cancel", "--key", "order-17", "--queue", "orders")
    assert said.json == {"queue": "orders", "key": "order-17", "cancelled": 3, "failed": []}
    assert cli("find", "--key", "order-17", "--queue", "orders").code == 1
    said = cli("--json", "cancel", "--key", "order-17", "--queue", "orders")
    assert (said.code, said.json["cancelled"]) == (1, 0)
    (left,) = cli("--json", "peek", "orders").json_lines
    assert (left["task"], left["key"]) == ("shop:pay", "order-18")


def test_of_a_key_s_messages_those_that_stay_are_named(cli, cli_url):
    """The others are changed; the exit code is that of the worst error, and the number is right."""
    cli("queue", "create", "orders", "--keyed")
    held = cli("send", "orders", "held", "--key", "k").out.strip()
    cli("send", "orders", "free", "--key", "k", "--delay", "1h")
    with connect(cli_url) as client, client.queue("orders").consumer() as consumer:
        assert [one.id for one in consumer.receive(5)] == [held]
        said = cli("reschedule", "--key", "k", "--queue", "orders", "--in", "2h")
        assert (said.code, said.out) == (3, "1 message of orders with the key k rescheduled.\n")
        assert f"{short(held)}: MessageHeld: " in said.err
        said = cli("--json", "reschedule", "--key", "k", "--queue", "orders", "--in", "3h")
        (failed,) = said.json["failed"]
        assert (said.code, said.json["rescheduled"]) == (3, 1)
        assert (failed["id"], failed["error"]) == (held, "MessageHeld")


def test_choices_are_those_of_the_library():
    assert get_args(send_command.While) == get_args(unique.While)
    assert get_args(send_command.OnConflict) == get_args(unique.OnConflict)


@pytest.mark.parametrize("command", [["find"], ["cancel"], ["reschedule", "--in", "1h"]])
def test_a_key_needs_a_keyed_queue_and_no_id(cli, command):
    """Exit code 2, with what to do."""
    assert "--keyed" in cli("queue", "alter", "q").err
    said = cli(*command, "--key", "k", "--queue", "q")
    assert said.code == 2
    assert "keyed=True" in said.err
    for wrong in ((), ("--key", "k"), ("--queue", "q"), ("x", "--key", "k", "--queue", "q")):
        said = cli(*command, *wrong)
        assert said.code == 2
        assert "Give an ID, or --key with --queue" in said.err
    said = cli(*command, "--key", "k", "--queue", "q.dead")
    assert (said.code, "`cqueue find --key k --queue q` shows its letters" in said.err) == (2, True)


def test_a_drop_of_damaged_rows_that_stops_half_way_says_how_far_it_came(cli, monkeypatch):
    rows = [Damage("workers", "", ("fleet", name), "no JSON") for name in "abc"]

    def drop(_client, damage):
        if damage is rows[2]:
            raise BadInput("it has been changed meanwhile; look again")

    monkeypatch.setattr(quarantine, "find", lambda _client, address: rows["abc".index(address)])
    monkeypatch.setattr(quarantine, "drop", drop)
    said = cli("quarantine", "drop", "a", "b", "a", "c", "--yes")
    assert (said.code, "2 of 3 rows are dropped." in said.err) == (2, True)
