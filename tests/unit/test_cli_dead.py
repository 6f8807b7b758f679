"""`cqueue dead`, `find`, `cancel`: each command, its JSON, its exit codes, and what it says to mistakes."""

import re
import signal
from datetime import timedelta
from hashlib import blake2b

import pytest

from cqueue import Queue, connect
from cqueue.cli import dead
from cqueue.dead_letters import DeadLetters, LettersResult
from cqueue.dispatcher.application.payload import decode
from cqueue.dispatcher.service import membership
from cqueue.dispatcher.service.membership import TTL_S, Worker
from cqueue.errors import BadInput, NotDone, SendUnknown
from cqueue.message import MessageId, short
from cqueue.protocol.send import INLINE_BODY
from cqueue.runtime.rendezvous import own_name
from cqueue.store.control import Heartbeat
from cqueue.store.operations import DeleteBodies

SEND = ("--task", "shop:send", "--args", '["a@b"]')


@pytest.fixture(autouse=True)
def _queue(cli):
    cli("queue", "create", "q")


@pytest.fixture
def client(cli_url):
    with connect(cli_url) as client:
        yield client


@pytest.fixture
def queue(client):
    return client.queue("q")


@pytest.fixture
def bury(cli, queue):
    """Send with these options and bury; the id that the message had."""

    def bury_one(*options, reason="Timeout: 30 s", headers=None):
        id_ = cli("send", "q", *options).out.strip()
        with queue.consumer() as consumer:
            (message,) = consumer.receive()
            message.dead(reason, headers)
        return id_

    return bury_one


def ids(cli):
    return [letter["id"] for letter in cli("--json", "dead", "list", "q").json_lines]


# ── dead list, dead show ──


def test_list_as_json_has_a_fixed_shape(cli, bury):
    original = bury(*SEND, "--header", "a=1", "--priority", 3)
    (letter,) = cli("dead", "list", "q", "--json").json_lines
    assert letter.pop("id") != original
    assert letter.pop("died_at").startswith("20")
    assert letter.pop("holder") == own_name()
    assert letter.pop("fence") > 0
    assert letter == {
        "original_id": original,
        "state": "dead",
        "task": "shop:send",
        "key": None,
        "reason": "Timeout: 30 s",
        "attempts": 1,
        "redrives": 0,
        "holder_lost": False,
        "held": False,
        "priority": 3,
        "headers": {"a": "1"},
        "size": 28,
    }


def test_list_shows_a_line_each_and_in_a_pipe_all_of_it(cli, bury):
    bury(*SEND, reason="first line\nsecond " + "x" * 300)
    header, line = cli("dead", "list", "q").out.splitlines()
    assert header.split() == ["id", "died", "task", "attempts", "reason"]
    (letter_id,) = ids(cli)
    assert re.fullmatch(
        rf"{short(letter_id)}  \d\d:\d\d:\d\d  shop:send +1  first line second x{{300}}", line
    )


def test_list_filters_and_says_when_there_may_be_more(cli, bury):
    bury(*SEND)
    bury("plain", reason="no such address")
    assert "no such address" in cli("dead", "list", "q", "--reason", "ADDRESS").out
    assert len(cli("--json", "dead", "list", "q", "--task", "shop:send").json_lines) == 1
    some = cli("dead", "list", "q", "--limit", 1)
    assert (len(some.out.splitlines()), "There may be more: --limit" in some.err) == (2, True)
    none = cli("dead", "list", "q", "--task", "other")
    assert (none.code, none.out, "no such dead letters" in none.err) == (0, "", True)
    assert cli("dead", "list", "q", "--limit", 0).code == 2


def test_show_has_all_of_it(cli, bury):
    """With the traceback in its lines, and the body as peek shows it."""
    trace = "Traceback (most recent call last):\n  File x\nValueError: no"
    original = bury(*SEND, headers={"cqueue-dead-traceback": trace})
    (letter_id,) = ids(cli)
    shown = cli("dead", "show", "q", letter_id).out
    for text in (letter_id, short(letter_id), original, "shop:send", "Timeout: 30 s", trace, '["a@b"]'):
        assert text in shown
    as_json = cli("--json", "dead", "show", "q", letter_id).json
    assert (as_json["queue"], as_json["traceback"], as_json["codec"]) == ("q", trace, "json")
    assert as_json["body"] == '{"args":["a@b"],"kwargs":{}}'


def test_a_letter_cannot_command_a_terminal(cli, bury):
    """Neither by its body nor by what an exception said; and no text becomes another one."""
    bury("a\x1b[2Jb :smile: [red]", reason="why\x1b[2J")
    for said in (cli("dead", "list", "q"), cli("dead", "show", "q", *ids(cli))):
        assert "\x1b[2J" not in said.out
        assert "why\\x1b[2J" in said.out
    assert "a\\x1b[2Jb :smile: [red]" in said.out


def test_a_letter_is_shown_without_its_body_if_it_must_be(cli, bury, client, tmp_path):
    """What else is known of it is what one looks for."""
    (tmp_path / "large").write_bytes(bytes(INLINE_BODY + 1))
    bury("--file", tmp_path / "large")
    (letter_id,) = ids(cli)
    wide_row, _, key = MessageId(letter_id).locate()
    client._driver.ask(DeleteBodies(wide_row, (key,)))
    said = cli("dead", "show", "q", letter_id)
    assert (said.code, "Timeout: 30 s" in said.out, "cannot be read" in said.out) == (0, True, True)
    assert cli("--json", "dead", "show", "q", letter_id).json["body"] is None


@pytest.mark.parametrize("form", ["whole", "short", "four", "original", "original short"])
def test_every_form_of_an_id_is_accepted(cli, bury, form):
    """The letter's and the message's, whole, short, or the beginning of a short one."""
    original = bury(*SEND)
    (letter_id,) = ids(cli)
    text = {
        "whole": letter_id,
        "short": short(letter_id),
        "four": short(letter_id)[:4],
        "original": original,
        "original short": short(original),
    }[form]
    assert cli("--json", "dead", "show", "q", text).json["id"] == letter_id
    assert cli("--json", "find", text).json["id"] == letter_id
    assert cli("--json", "dead", "redrive", "q", text).json["done"] == [letter_id]


def test_a_short_id_of_several_is_refused(cli, bury, monkeypatch):
    """And nothing is done with any of them."""
    bury("a")
    bury("b")
    monkeypatch.setattr("cqueue.message.blake2b", lambda _, digest_size: blake2b(digest_size=digest_size))
    alike = short("any")
    for command in (("dead", "drop", "q", alike, "--yes"), ("cancel", alike)):
        said = cli(*command)
        assert (said.code, "stands for" in said.err) == (2, True)
    assert len(ids(cli)) == 2


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("show", "q", "nonsense!"), "short form"),
        (("show", "q", "aaaa"), "cqueue dead list q"),
        (("show", "qq", "aaaa"), "Did you mean 'q'?"),
        (("show", "q.dead", "aaaa"), "is a dead-letter queue"),
        (("redrive", "q"), "--all"),
        (("redrive", "q", "aaaa", "--all"), "one of these"),
        (("redrive", "q", "--task", "x", "--all"), "one of these"),
        (("redrive", "q", "--kind", "x", "--all"), "one of these"),
        (("redrive", "q", "--kind", "x", "--reason", "x"), "not both"),
        (("list", "q", "--kind", "x", "--reason", "x"), "not both"),
        (("redrive", "q", "aaaa"), "no dead letter aaaa"),
        (("drop", "q", "--yes"), "--all"),
        (("drop", "q", "--all"), "--yes"),
    ],
)
def test_a_mistake_is_2_and_changes_nothing(cli, bury, args, hint):
    bury(*SEND)
    said = cli("dead", *args)
    assert (said.code, said.out) == (2, "")
    assert hint in said.err
    assert len(ids(cli)) == 1


# ── dead redrive, dead drop ──


def test_a_task_comes_back_as_a_task(cli, bury):
    bury(*SEND)
    said = cli("dead", "redrive", "q", "--task", "shop:send", "--dry-run")
    assert said.out == "1 dead letter would be sent back to q.\n"
    assert cli("--json", "peek", "q").json_lines == []
    assert cli("dead", "redrive", "q", "--task", "shop:send").out == "1 dead letter sent back to q.\n"
    (message,) = cli("--json", "peek", "q").json_lines
    assert (message["task"], message["state"], message["attempts"]) == ("shop:send", "ready", 0)
    assert ids(cli) == []


def test_redrive_as_json_has_a_fixed_shape(cli, bury):
    bury(*SEND)
    (letter_id,) = ids(cli)
    said = cli("--json", "dead", "redrive", "q", "--all").json
    (message,) = cli("--json", "peek", "q").json_lines
    assert said == {
        "queue": "q",
        "dry_run": False,
        "done": [letter_id],
        "sent": [message["id"]],
        "held": [],
        "failed": [],
    }


def test_redrive_looks_for_its_letters_once(cli, bury, monkeypatch):
    """There may be a million."""
    bury(*SEND)
    bury(*SEND)
    passes, originally = [], DeadLetters.__iter__
    monkeypatch.setattr(DeadLetters, "__iter__", lambda self: passes.append(self.queue) or originally(self))
    assert cli("dead", "redrive", "q", "--all").out == "2 dead letters sent back to q.\n"
    assert passes == ["q"]


@pytest.mark.parametrize("options", [("--rate", "0"), ("--max-redrives", "0")])
def test_a_limit_out_of_range_is_refused_before_anything_is_looked_for(cli, monkeypatch, options):
    monkeypatch.setattr("cqueue.client.connect", None)
    assert cli("dead", "redrive", "q", "--all", *options).code == 2


def test_groups_show_what_dies_most(cli, bury):
    """A line a group; as JSON an object a line. The reason and task of a line pick its letters."""
    for number in range(2):
        bury(*SEND, reason=f"KeyError: {number}")
    bury("x", reason="Timeout: 30 s")
    header, first, second = cli("dead", "groups", "q").out.splitlines()
    assert header.split() == ["letters", "task", "last", "died", "redriven", "example", "reason"]
    assert re.fullmatch(r" +2  shop:send  \d\d:\d\d:\d\d +0  [a-z2-7]{8}  KeyError", first)
    assert second.split()[:2] == ["1", "–"]
    largest = cli("--json", "dead", "groups", "q").json_lines[0]
    assert set(largest) == {"task", "reason", "count", "first", "last", "example", "redriven"}
    said = cli("dead", "redrive", "q", "--task", largest["task"], "--kind", largest["reason"])
    assert said.out == "2 dead letters sent back to q.\n"
    assert "no such dead letters" in cli("dead", "groups", "q", "--task", "shop:send").err


def test_a_kind_takes_the_letters_of_its_group_only(cli, bury):
    """Also an empty one; another's reason may contain it."""
    for reason in ("Error: 1", "KeyError: 2", ""):
        bury("x", reason=reason)
    assert [one["reason"] for one in cli("--json", "dead", "list", "q", "--kind", "Error").json_lines] == [
        "Error: 1"
    ]
    assert cli("dead", "redrive", "q", "--kind", "Error").out == "1 dead letter sent back to q.\n"
    assert cli("dead", "drop", "q", "--kind", "", "--yes").out == "1 dead letter of q dropped.\n"
    assert [one["reason"] for one in cli("--json", "dead", "list", "q").json_lines] == ["KeyError: 2"]


def test_a_letter_over_its_limit_of_redrives_stays_and_is_3(cli, bury, queue):
    """At a rate as well; the sheet says how often it was sent back, and who held it."""
    bury(*SEND)
    assert cli("dead", "redrive", "q", "--all", "--rate", 5, "--max-redrives", 1).code == 0
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=timedelta(seconds=10))
        message.dead("again")
    said = cli("dead", "redrive", "q", "--all", "--max-redrives", 1)
    assert (said.code, said.out) == (3, "0 dead letters sent back to q.\n")
    assert "RedriveLimit: it was redriven 1 times" in said.err
    shown = cli("dead", "show", "q", ids(cli)[0]).out
    for text in ("redrives", own_name(), str(message.fence)):
        assert text in shown
    assert cli("dead", "redrive", "q", "--all", "--rate", 0).code == 2


def test_a_held_letter_stays_and_is_3(cli, bury, client):
    """Somebody works on it: try again later."""
    bury(*SEND)
    with client.queue("q.dead").consumer() as consumer:
        (held,) = consumer.receive()
        for verb in ("redrive", "drop"):
            said = cli("dead", verb, "q", "--all", *(["--yes"] if verb == "drop" else []))
            assert said.code == 3
            assert f"{short(held.id)}: a consumer of the dead-letter queue holds it" in said.err
        held.nack()
    assert cli("dead", "redrive", "q", "--all").code == 0


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([NotDone("its body is lost")], 3),
        ([NotDone("x"), SendUnknown("no answer")], 4),
        ([BadInput("x")], 2),
    ],
)
def test_what_failed_is_said_of_each_letter(cli, monkeypatch, errors, code):
    """The worst decides the exit code."""
    failing(monkeypatch, errors)
    said = cli("dead", "redrive", "q", "--all")
    assert (said.code, said.out) == (code, "1 dead letter sent back to q.\n")
    for number, error in enumerate(errors):
        assert f"{short(f'id{number}')}: {type(error).__name__}: {error}" in said.err
    told = cli("--json", "dead", "redrive", "q", "--all").json["failed"]
    assert [one["error"] for one in told] == [type(error).__name__ for error in errors]


def test_what_failed_in_the_same_way_is_said_once(cli, monkeypatch):
    """As when Cassandra goes away: a line with some of the letters. Of many errors some are printed."""
    failing(monkeypatch, [NotDone("no node")] * 12)
    (line,) = cli("dead", "redrive", "q", "--all").err.splitlines()
    assert line.startswith(f"{short('id0')}, {short('id1')}, ")
    assert line.endswith(" and 7 more: NotDone: no node")
    failing(monkeypatch, [NotDone(str(number)) for number in range(12)])
    assert "and 7 more errors" in cli("dead", "redrive", "q", "--all").err


def failing(monkeypatch, errors):
    """A redrive that ends so, with one letter that was sent."""
    failed = tuple((f"id{number}", error) for number, error in enumerate(errors))
    result = LettersResult(done=("x",), sent=("y",), held=(), failed=failed)
    redriving(monkeypatch, lambda *_args, **_limits: result)


def redriving(monkeypatch, act):
    """A queue with a letter, whose redrive is this function."""
    monkeypatch.setattr(DeadLetters, "_chosen", lambda *_args, **_options: ["x"])
    monkeypatch.setattr(DeadLetters, "_redrive_those_left", act)


def test_ctrl_c_says_that_the_same_command_goes_on(cli, monkeypatch):
    redriving(monkeypatch, lambda *_args, **_limits: signal.raise_signal(signal.SIGINT))
    said = cli("dead", "redrive", "q", "--all")
    assert (said.code, "the same command goes on" in said.err) == (130, True)


def test_a_redrive_of_ids_that_is_cut_off_goes_on_without_those_that_are_gone(cli, bury, monkeypatch):
    """The same ids would be refused."""
    original = bury(*SEND)
    redriving(monkeypatch, lambda *_args, **_limits: signal.raise_signal(signal.SIGINT))
    said = cli("dead", "redrive", "q", original)
    assert (
        said.err
        == "What is done stays done; the same command goes on, without the ids of letters that are gone.\n"
    )


def test_a_dry_run_that_is_cut_off_says_nothing_of_going_on(cli, bury, monkeypatch):
    bury(*SEND)
    monkeypatch.setattr(DeadLetters, "redrive", lambda *_a, **_o: signal.raise_signal(signal.SIGINT))
    said = cli("dead", "redrive", "q", "--all", "--dry-run")
    assert (said.code, said.err) == (130, "Interrupted.\n")


def test_a_letter_that_goes_while_redrive_looks_is_counted(cli, bury, client, monkeypatch):
    originals = [bury(*SEND, "--priority", priority) for priority in (1, 2)]
    look = DeadLetters._chosen

    def look_then_drop(*args, **options):
        found = look(*args, **options)
        monkeypatch.setattr(DeadLetters, "_chosen", look)
        client.queue("q").dead_letters.drop(originals[1])
        return found

    monkeypatch.setattr(DeadLetters, "_chosen", look_then_drop)
    said = cli("dead", "redrive", "q", "--all")
    assert (said.code, said.out) == (0, "1 dead letter sent back to q.\n")
    assert "1 dead letter had gone meanwhile." in said.err


def test_a_filter_that_fits_no_letter_says_where_to_look(cli, bury):
    """A short or misspelt name of a task changes nothing, and the answer says where the names stand."""
    bury(*SEND)
    result = cli("dead", "redrive", "q", "--task", "send")
    assert result.out == "0 dead letters sent back to q.\n"
    assert "No letter fits. `cqueue dead list q` shows" in result.err
    assert ids(cli)


def test_dropped_letters_are_gone(cli, bury):
    bury(*SEND)
    bury("stays", reason="other")
    assert cli("dead", "drop", "q", "--reason", "timeout", "--yes").out == "1 dead letter of q dropped.\n"
    assert len(ids(cli)) == 1
    assert cli("dead", "drop", "q", "--reason", "timeout", "--yes").out == "0 dead letters of q dropped.\n"


def test_a_letter_that_goes_while_drop_asks_keeps_no_other(cli, bury, client, monkeypatch):
    """A colleague drops one before the "yes", and another message dies: the others of the question go."""
    originals = [bury(*SEND, "--priority", priority) for priority in (1, 2, 3)]

    def meanwhile(*_args, **_options):
        client.queue("q").dead_letters.drop(originals[1])
        bury("late")

    monkeypatch.setattr(dead, "confirm", meanwhile)
    said = cli("dead", "drop", "q", "--all", "--yes")
    assert (said.code, said.out) == (0, "2 dead letters of q dropped.\n")
    assert "1 dead letter had gone meanwhile." in said.err
    assert len(ids(cli)) == 1


# ── find, cancel ──


def test_find_says_how_a_message_stands(cli, queue):
    id_ = cli("send", "q", *SEND, "--header", "a=1").out.strip()
    shown = cli("find", id_).out
    for text in (id_, short(id_), "ready", "shop:send", "a=1", '["a@b"]'):
        assert text in shown
    with queue.consumer() as consumer:
        consumer.receive()
        as_json = cli("--json", "find", short(id_), "--queue", "q").json
        assert (as_json["queue"], as_json["state"], as_json["attempts"]) == ("q", "claimed", 1)
        assert as_json["next_at"] > as_json["due"]
        assert "unless it is acked" in cli("find", id_).out


def test_cancel_deletes_one_message(cli):
    gone, stays = (cli("send", "q", body, "--delay", "1h").out.strip() for body in ("a", "b"))
    assert cli("cancel", short(gone)).out == f"Message {short(gone)} of q is cancelled.\n"
    assert [message["id"] for message in cli("--json", "peek", "q").json_lines] == [stays]
    assert cli("--json", "cancel", stays).json == {
        "queue": "q", "id": stays, "cancelled": True, "held": False,
    }  # fmt: skip


def test_cancel_says_that_a_handler_goes_on(cli, queue):
    id_ = cli("send", "q", "x").out.strip()
    with queue.consumer() as consumer:
        consumer.receive()
        said = cli("cancel", id_)
        assert (said.code, "its handler goes on" in said.err) == (0, True)
    assert queue.stats(exact=True).live == 0


def test_reschedule_moves_messages(cli, queue):
    """By --due or --in, many at once; earlier than its time shard under a new id."""
    ids_ = [cli("send", "q", body).out.strip() for body in ("a", "b")]
    said = cli("reschedule", *map(short, ids_), "--in", "2h")
    assert said.out == "".join(f"Message {short(id_)} of q is rescheduled.\n" for id_ in ids_)
    assert all(queue.find(id_).state == "waiting" for id_ in ids_)
    assert cli("--json", "reschedule", ids_[0], "--due", "2030-01-31T08:00:00Z").json == {
        "queue": "q", "id": ids_[0], "rescheduled": True, "held": False,
    }  # fmt: skip
    assert queue.find(ids_[0]).next_at.year == 2030
    later = cli("send", "q", "c", "--delay", "9d").out.strip()
    moved = cli("--json", "reschedule", later, "--in", "0s").json
    assert queue.find(moved["new_id"]).body == b"c"
    for wrong in ((), ("--in", "1s", "--due", "2030-01-31T08:00:00Z")):
        assert cli("reschedule", ids_[0], *wrong).code == 2


def test_set_priority_gives_a_new_id(cli, queue):
    id_ = cli("send", "q", "a").out.strip()
    told = cli("--json", "set-priority", "7", id_).json
    assert (told["changed"], told["priority"]) == (True, 7)
    new = told["new_id"]
    assert queue.find(new).priority == 7
    said = cli("set-priority", "3", new).out
    assert said == f"Message {short(new)} of q is changed. Its new id is {queue.peek()[0].id}\n"
    assert cli("set-priority", "10", queue.peek()[0].id).code == 2


def test_extend_keeps_what_is_held(cli, queue):
    """What nobody holds is exit code 5, and what is held cannot be moved, which is 3."""
    id_ = cli("send", "q", "a").out.strip()
    assert (cli("extend", id_, "--for", "2h").code, cli("extend", id_, "--for", "1s").code) == (5, 2)
    with queue.consumer() as consumer:
        (message,) = consumer.receive()
        before = message.visible_again
        assert cli("extend", id_, "--for", "2h").out == f"Message {short(id_)} of q is extended.\n"
        assert queue.find(id_).next_at > before
        said = cli("reschedule", id_, "--in", "1h")
        assert (said.code, "MessageHeld" in said.err) == (3, True)
        as_json = cli("--json", "reschedule", id_, "--in", "1h").json
        assert (as_json["id"], as_json["error"]) == (id_, "MessageHeld")


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("set-priority", "11", "aaaa"), "from 0 (most urgent) to 9"),
        (("set-priority", "aaaa", "3"), "'PRIORITY': Input should be a valid integer"),
        (("extend", "aaaa", "--for", "1s"), "from 2s to 12h"),
        (("reschedule", "aaaa", "--in", "4000d"), "10 years"),
        (("reschedule", "aaaa", "--due", "2090-01-31T08:00Z"), "10 years"),
        (("reschedule", "--key", "k", "--queue", "q", "--in", "4000d"), "10 years"),
        (("list", "q", "--max-rows", "-5"), "--max-rows"),
    ],
)
def test_bad_values_are_refused_before_anything_is_looked_for(cli, monkeypatch, args, hint):
    def opened(_url):
        raise AssertionError("a client was opened")

    monkeypatch.setattr("cqueue.client.connect", opened)
    said = cli(*args)
    assert (said.code, said.out) == (2, "")
    assert hint in " ".join(said.err.replace("│", " ").split())


def test_of_several_messages_those_that_are_there_are_changed(cli):
    gone, stays = (cli("send", "q", body).out.strip() for body in ("a", "b"))
    cli("cancel", gone)
    said = cli("cancel", gone, stays)
    assert (said.code, f"no message {gone}" in said.err) == (1, True)
    assert said.out == f"Message {short(stays)} of q is cancelled.\n"


def test_many_short_ids_are_looked_for_in_one_pass(cli, queue, monkeypatch):
    """Also of different lengths, and one given twice; each queue's ids are read once."""
    ids_ = [cli("send", "q", str(number)).out.strip() for number in range(5)]
    read, originally = [], Queue.ids
    monkeypatch.setattr(Queue, "ids", lambda self: read.append(self.name) or originally(self))
    texts = [short(ids_[0]), short(ids_[1])[:7], short(ids_[2]), short(ids_[2]), ids_[3], short(ids_[3])]
    said = cli("cancel", *texts)
    assert (said.code, len(said.out.splitlines())) == (0, 4)
    assert sorted(read) == ["q", "q.dead"]
    assert [message.id for message in queue.peek()] == [ids_[4]]


@pytest.mark.parametrize("command", ["find", "cancel"])
def test_a_message_that_is_not_there_is_1(cli, command):
    """Acked and never sent look alike. An id that is none is a mistake, and so is a queue that is none."""
    id_ = cli("send", "q", "x").out.strip()
    cli("receive", "q")
    for text in (id_, "aaaa"):
        said = cli(command, text)
        assert (said.code, said.out, f"no message {text}" in said.err) == (1, "", True)
    assert cli("--json", command, id_).json == (
        None if command == "find" else {"id": id_, "cancelled": False}
    )
    assert cli(command, "nonsense!").code == 2
    assert cli(command, id_[:-1]).code == 2
    wide_row, priority, number = MessageId(id_).locate()
    cut = MessageId.of(wide_row._replace(queue=wide_row.queue[:-1]), priority, number)
    assert cli(command, cut).code == 2  # what is left of a pasted id may look like a whole one
    assert "Did you mean 'q'?" in cli(command, "aaaa", "--queue", "qq").err


@pytest.mark.parametrize("command", ["find", "cancel"])
def test_a_whole_id_of_another_queue_than_the_one_named_is_a_mistake(cli, bury, queue, command):
    """A user who names beta does not mean a message of alpha, and nothing is deleted."""
    cli("queue", "create", "beta")
    original = bury("dead")
    alive = cli("send", "q", "alive").out.strip()
    for id_ in (alive, original, *ids(cli)):
        said = cli(command, id_, "--queue", "beta")
        assert (said.code, said.out, "of queue 'q', not 'beta'" in said.err) == (2, "", True)
    assert [message.id for message in queue.peek()] == [alive]
    for name in ("q", "q.dead"):
        assert cli("find", alive, "--queue", name).code == 0


@pytest.mark.parametrize("command", ["find", "cancel"])
def test_a_message_of_a_queue_that_was_deleted_and_made_again_is_1(cli, bury, command):
    """It is not there any more; the queue of its name is another one. Its letters went with the old one."""
    original = bury("dead")
    (letter_id,) = ids(cli)
    old = cli("send", "q", "x").out.strip()
    cli("queue", "delete", "q", "--yes")
    assert cli(command, old).code == 2  # there is no queue at all
    cli("queue", "create", "q")
    for id_ in (old, original, letter_id):
        said = cli(command, id_)
        assert (said.code, said.out, f"no message {id_}" in said.err) == (1, "", True)


def test_a_dead_letter_is_not_cancelled(cli, bury):
    """What to do is said; it may have been sent back meanwhile."""
    original = bury(*SEND)
    (letter_id,) = ids(cli)
    for text in (original, letter_id):
        said = cli("cancel", text)
        assert (said.code, f"cqueue dead drop q {short(letter_id)}" in said.err) == (2, True)
    assert ids(cli) == [letter_id]


# ── send --task ──


@pytest.mark.parametrize(
    ("options", "args", "kwargs"),
    [
        ((), (), {}),
        (("--args", '["a@b", 3]'), ("a@b", 3), {}),
        (("--args", '{"to": "a@b"}'), (), {"to": "a@b"}),
        (("--kwargs", '{"to": "a@b"}'), (), {"to": "a@b"}),
        (("--args", "[1]", "--kwargs", '{"n": null}'), (1,), {"n": None}),
    ],
)
def test_a_task_is_called_as_enqueue_calls_it(cli, queue, options, args, kwargs):
    said = cli(
        "--json", "send", "q", "--task", "shop:send", *options, "--priority", 2, "--header", "a=1"
    ).json
    with queue.consumer() as consumer:
        (message,) = consumer.receive()
        assert said == {"queue": "q", "task": "shop:send", "id": message.id}
        assert decode(message.body, message.codec) == (args, kwargs)
        assert (message.task, message.codec, message.priority) == ("shop:send", "json", 2)
        assert message.headers == {"a": "1"}


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--args", "[1]"), "give --task"),
        (("--kwargs", "{}"), "give --task"),
        (("--task", "x", "body"), "leave the body"),
        (("--task", "x", "--lines"), "leave the body"),
        (("--task", "x", "--args", "[1"), "JSON such as"),
        (("--task", "x", "--args", '{"to": "a", "to": "b"}'), '"to" comes twice'),
        (("--task", "x", "--kwargs", '{"a": [{"b": 1, "c": 2, "b": 1}]}'), '"b" comes twice'),
        (("--task", "x", "--args", "[NaN]"), "NaN is no number"),
        (("--task", "x", "--kwargs", '{"a": -Infinity}'), "-Infinity is no number"),
        (("--task", "x", "--args", "[1e999]"), "1e999 is too large"),
        (("--task", "x", "--args", "7"), "JSON array"),
        (("--task", "x", "--kwargs", "[]"), "JSON object"),
        (("--task", "x", "--args", '{"a": 1}', "--kwargs", "{}"), "not in both"),
        (("--task", ""), "1 to 1,000 characters"),
    ],
)
def test_a_call_that_cannot_be_is_2_and_sends_nothing(cli, queue, options, hint):
    said = cli("send", "q", *options)
    assert (said.code, said.out) == (2, "")
    assert hint in said.err
    assert queue.stats(exact=True).live == 0


def at_work(client, *tasks, **values):
    """A worker of queue q that says that it knows these tasks."""
    told = {"app": "hooks:app", "queues": ("q",), "state": "running", "tasks": tasks, **values}
    worker = Worker(f"worker-{told}", "db-7", 4711, threads=8, version="1", started=1.0, **told)
    client._driver.ask(Heartbeat(worker.row(), TTL_S))


@pytest.mark.parametrize(
    ("task", "tasks", "hint"),
    [
        ("send_hook", ("hooks:resend_hooks", "hooks:send_hook", None), "Did you mean 'hooks:send_hook'?"),
        ("hoks:send_hook", ("hooks:send_hook", "hooks:send_hooks"), "Did you mean 'hooks:send_hook'?"),
        ("hooks:sendhook", ("hooks:send_hook",), "Did you mean 'hooks:send_hook'?"),
        (
            "send_hook",
            ("shop.services.webhooks.outgoing:send_hook",),
            "webhooks.outgoing:send_hook'?",
        ),
        ("mail", ("hooks:a", "hooks:b"), "`cqueue --json workers` shows the tasks that each knows."),
        ("mail", (), "`cqueue --json workers` shows the tasks that each knows."),
    ],
)
def test_a_task_that_no_worker_knows_is_sent_and_said(cli, client, task, tasks, hint):
    """Nobody would notice otherwise before it fails, an hour later; but a deployment may be under way."""
    at_work(client, *tasks)
    said = cli("send", "q", "--task", task)
    assert said.code == 0
    assert client.queue("q").find(said.out.strip()).task == task
    assert said.err.startswith(f"No worker of queue q knows a task {task!r}: the message waits for one ")
    assert said.err.strip().endswith(hint)
    assert cli("--json", "send", "q", "--task", task).err == ""


@pytest.mark.parametrize(
    "workers",
    [
        [],
        [{"tasks": ("hooks:send_hook", "send_hook")}],
        [{}, {"tasks": None}],
        [{"queues": ("other",)}],
        [{"state": "stopping"}],
    ],
)
def test_nothing_is_said_of_a_task_that_a_worker_may_know(cli, client, workers):
    """Nobody serves the queue, one knows the task, or one does not say what it knows."""
    for values in workers:
        at_work(client, "hooks:send_hook", **values)
    assert cli("send", "q", "--task", "send_hook").err == ""


def test_a_call_is_sent_also_where_nobody_can_be_asked_about_workers(cli, queue, monkeypatch):
    """The message is stored by then, whatever becomes of the remark."""

    def fail(_client):
        raise NotDone("no answer")

    monkeypatch.setattr(membership, "listed", fail)
    said = cli("send", "q", "--task", "send_hook")
    assert (said.code, said.err) == (0, "")
    assert queue.find(said.out.strip()).task == "send_hook"
