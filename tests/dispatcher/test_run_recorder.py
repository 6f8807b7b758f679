"""What a process was handling is known after its death."""

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from cqueue.dispatcher.service import run_recorder
from cqueue.dispatcher.service.run_recorder import SIZE, SLOTS, RunRecorder, unfinished_runs


@pytest.fixture
def shared():
    number = run_recorder.shared_file()
    yield number
    os.close(number)


def run(number, task="send"):
    message = SimpleNamespace(id=f"id-{number}", attempt=2)
    return message, SimpleNamespace(queue="mail", task=task)


def test_what_has_begun_and_not_ended_is_told(shared):
    """Runs may end in any order; slots are used again."""
    writes = RunRecorder(os.dup(shared))
    runs = [run(number) for number in range(5)]
    for message, context in runs:
        writes.before_run(message, context)
    for message, context in (runs[3], runs[0], runs[4]):
        writes.after_run(message, context, None, None)
    told = unfinished_runs(shared)
    assert sorted(one["message_id"] for one in told) == ["id-1", "id-2"]
    assert told[0] | {"message_id": ""} == {"task": "send", "message_id": "", "attempt": 2, "queue": "mail"}
    for message, context in (runs[1], runs[2]):
        writes.after_run(message, context, None, None)
    assert unfinished_runs(shared) == []


def test_more_runs_than_there_are_slots_cost_nothing_but_their_names(shared):
    writes = RunRecorder(os.dup(shared))
    runs = [run(number) for number in range(SLOTS + 3)]
    for message, context in runs:
        writes.before_run(message, context)
    assert len(unfinished_runs(shared)) == SLOTS
    for message, context in runs:
        writes.after_run(message, context, None, None)
    assert unfinished_runs(shared) == []
    writes.before_run(*run(1))
    assert len(unfinished_runs(shared)) == 1


def test_a_long_name_is_cut_and_harms_no_neighbour(shared):
    """Names have up to 1,000 characters, of any length in bytes."""
    writes = RunRecorder(os.dup(shared))
    writes.before_run(*run(1, "ü" * 1000))
    writes.before_run(*run(2))
    by_id = {one["message_id"]: one["task"] for one in unfinished_runs(shared)}
    assert by_id["id-2"] == "send"
    assert set(by_id["id-1"]) == {"ü"}
    assert len(by_id["id-1"].encode()) < SIZE


def test_a_killed_process_leaves_what_it_had_begun(shared):
    """Another process wrote it, and had no time to say anything."""
    code = """
        import os, sys
        from types import SimpleNamespace
        from cqueue.dispatcher.service.run_recorder import RunRecorder
        writes = RunRecorder(int(sys.argv[1]))
        context = SimpleNamespace(queue="mail", task="send")
        writes.before_run(SimpleNamespace(id="id", attempt=1), context)
        os.kill(os.getpid(), 9)
    """
    args = [sys.executable, "-c", textwrap.dedent(code), str(shared)]
    assert subprocess.run(args, pass_fds=[shared], check=False).returncode == -9
    assert unfinished_runs(shared) == [{"task": "send", "message_id": "id", "attempt": 1, "queue": "mail"}]
