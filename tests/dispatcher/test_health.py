"""Answers to probes: `/livez` fails only if a restart cures."""

import json
import socket
import urllib.error
import urllib.request
from datetime import timedelta

import pytest

import cqueue
from cqueue.dispatcher.execution import engine, events
from cqueue.dispatcher.execution.events import LASTING_TOLD, Event, Events, Trouble
from cqueue.dispatcher.service.health import Health, judge, of, serving, together
from cqueue.errors import ConfigError, Refused, Unavailable
from cqueue.store.control import KeepResult
from tests.fix_dispatcher import until

pytestmark = pytest.mark.usefixtures("brisk_server")


@pytest.mark.parametrize(
    ("health", "alive", "ready"),
    [
        (judge("running"), True, True),
        (judge("stopping"), True, False),
        (judge("stopped"), True, False),
        (judge("running", failing=True), True, False),  # Cassandra is away: no restart helps
        (judge("running", stuck={"mail": "Refused: no grant"}), True, False),  # nor here
        (judge("running", unsettled={"ack": "Refused: no grant"}), True, False),
        (judge("running", stalled_s=59), True, True),
        (judge("running", stalled_s=61), False, False),
        (judge("running", blocked_s=59), True, True),
        (judge("running", blocked_s=61), False, False),
        (judge("running", dead_threads=("cqueue-fetcher-0",)), False, False),
        (judge("running", dead_threads=("cqueue-lease-extender",), failing=True), False, False),
    ],
)
def test_an_outage_is_not_a_reason_to_restart_and_a_dead_thread_is(health, alive, ready):
    assert (health.alive, health.ready) == (alive, ready)
    assert health.reason


def test_health_is_asked_for_without_counting_the_messages_of_each_queue(work, dispatch, monkeypatch):
    """A daemon asks once a second: of 20,000 queues that took a tenth of a core."""
    dispatcher = dispatch(work, print)
    monkeypatch.setattr(dispatcher, "stats", None)
    assert of(dispatcher) == Health(alive=True, ready=True, reason="running")


def test_a_blocked_loop_cuts_no_grace_short(work, dispatch, monkeypatch):
    """Handlers on threads have it as well, and the stop ends what the loop runs in any case."""
    dispatcher = dispatch(work, print)
    monkeypatch.setattr(dispatcher.engine.loop, "overdue_s", lambda _: 100.0)
    assert not of(dispatcher).alive
    with monkeypatch.context() as patch:
        patch.setattr(dispatcher, "_state", "stopping")
        assert of(dispatcher) == Health(alive=True, ready=False, reason="stopping")


def test_who_receives_nothing_as_no_ack_is_stored_is_not_ready(shop, troubled, dispatch, monkeypatch):
    """Polls do not fail then: none is made. Here the results cannot be kept, and acks wait for them."""
    monkeypatch.setattr(engine, "UNSETTLED", 3)
    monkeypatch.setattr(events, "STUCK_S", 0.0)
    app = cqueue.App(shop)
    task = app.task(name="t", queue="work", result_ttl=timedelta(minutes=1))(lambda: 1)
    (queue,) = app.setup()
    troubled.trouble = lambda operation: Refused("GRANT") if isinstance(operation, KeepResult) else None
    dispatcher = dispatch(queue, app, backlog=1)
    for _ in range(10):
        task.enqueue()
    expected = "nothing is received, as nothing can be settled: ack: Refused: GRANT"
    until(lambda: of(dispatcher) == Health(alive=True, ready=False, reason=expected))
    troubled.trouble = lambda _: None
    until(lambda: of(dispatcher).ready)


def test_a_queue_that_cannot_be_received_from_is_named_with_the_reason():
    """Of many queues only the first few are named: people read a probe's answer."""
    stuck = {f"q{number}": "Refused: GRANT MODIFY" for number in range(5)}
    reason = judge("running", failing=True, stuck=stuck).reason
    assert reason.startswith("queue q0 cannot be received from: Refused: GRANT MODIFY; queue q1")
    assert reason.endswith("and 2 more queues")


class Told(Events):
    """Events that are kept."""

    def __init__(self):
        self.said = []
        super().__init__()

    def say(self, event, *, error=None, **fields):
        self.said.append((event, type(error)))


def test_a_queue_is_stuck_after_three_failures_and_five_seconds_and_well_at_the_first_success():
    """A node that restarts fails a poll or two; what is refused for good fails them all."""
    now_s = [100.0]
    trouble = Trouble(Told(), Event.RECEIVE_FAILED, Event.RECEIVE_RESUMED, lambda: now_s[0])
    for seconds, stuck in ((0.0, False), (3.0, False), (4.9, False), (5.0, True)):
        now_s[0] = 100.0 + seconds
        trouble.failed("mail", Refused("no grant"))
        assert (trouble.stuck == {"mail": "Refused: no grant"}) is stuck
    now_s[0] = 200.0
    trouble.failed("slow", Unavailable("away"))
    now_s[0] = 220.0
    trouble.failed("slow", Unavailable("away"))
    assert list(trouble.stuck) == ["mail"]  # two failures are none, however far apart
    trouble.succeeded("mail")
    assert not trouble.stuck


def test_what_lasts_is_told_once_and_another_error_at_once():
    """An outage is told of every half minute; a refusal is not, as somebody has to do something first."""
    now_s, events = [0.0], Told()
    trouble = Trouble(events, Event.RECEIVE_FAILED, Event.RECEIVE_RESUMED, lambda: now_s[0])
    for second in range(100):
        now_s[0] = second
        trouble.failed("mail", Unavailable("away") if second < 40 else Refused("no grant"))
    assert events.said == [
        (Event.RECEIVE_FAILED, Unavailable),
        (Event.RECEIVE_FAILED, Unavailable),
        (Event.RECEIVE_FAILED, Refused),
    ]


def test_another_refusal_is_told_at_once_though_both_are_of_one_class():
    """The operator who has granted SELECT must hear that MODIFY is missing too, not ten minutes later."""
    now_s, events = [0.0], Told()
    trouble = Trouble(events, Event.RECEIVE_FAILED, Event.RECEIVE_RESUMED, lambda: now_s[0])
    for second in range(10):
        now_s[0] = second
        trouble.failed("mail", Refused("GRANT SELECT" if second < 5 else "GRANT MODIFY"))
        trouble.failed("slow", Unavailable(f"away for the time {second}"))
    assert [error for _, error in events.said] == [Refused, Unavailable, Refused]


def test_refusals_that_take_turns_are_told_once_each():
    """Two grants may be missing; and of many damaged rows only the first few are told."""
    now_s, events = [0.0], Told()
    trouble = Trouble(events, Event.RECEIVE_FAILED, Event.RECEIVE_RESUMED, lambda: now_s[0])
    for second in range(100):
        now_s[0] = second
        trouble.failed("mail", Refused(f"GRANT {second % 2}"))
    assert len(events.said) == 2
    for second in range(100):
        trouble.failed("damaged", Refused(f"row {second}"))
    assert len(events.said) == 2 + LASTING_TOLD


def test_several_processes_are_ready_if_one_is_and_the_parent_cares_for_the_rest():
    health = together(
        {"0": Health(alive=False, ready=False, reason="ended"), "1": Health(True, True, "running")}
    )
    assert health == Health(alive=True, ready=True, reason="child 0: ended; child 1: running")
    assert together({}) == Health(alive=True, ready=False, reason="no process")


def test_a_probe_adds_up_no_counters(work, dispatch, monkeypatch):
    """Those of 20,000 queues would take a tenth of a second each time."""
    dispatcher = dispatch(work, lambda *_: None)
    monkeypatch.setattr(dispatcher, "stats", lambda: pytest.fail("was added up"))
    assert of(dispatcher).ready


class Answers:
    def __init__(self):
        self.health = Health(alive=True, ready=True, reason="running")
        self.port = 0

    def get(self, path):
        """Status, content type, and body."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.headers["Content-Type"], exc.read()


@pytest.fixture
def answers():
    answers = Answers()
    with serving(("127.0.0.1", 0), lambda: answers.health, lambda: b"cqueue_running 1.0\n") as answers.port:
        yield answers


def test_a_process_at_work_is_live_and_ready(answers):
    for path in ("/livez", "/readyz", "/readyz?verbose=1"):
        status, kind, body = answers.get(path)
        assert (status, kind) == (200, "application/json")
        assert json.loads(body) == {"alive": True, "ready": True, "reason": "running"}


def test_in_an_outage_it_is_live_and_not_ready(answers):
    answers.health = judge("running", failing=True)
    assert answers.get("/livez")[0] == 200
    assert answers.get("/readyz")[0] == 503


def test_a_process_that_hangs_is_neither(answers):
    answers.health = judge("running", stalled_s=100)
    assert answers.get("/livez")[0] == answers.get("/readyz")[0] == 503
    assert b"100 s" in answers.get("/livez")[2]


def test_metrics_are_text_for_prometheus(answers):
    status, kind, body = answers.get("/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert body == b"cqueue_running 1.0\n"


def test_another_path_says_what_there_is(answers):
    status, _, body = answers.get("/healthz")
    assert status == 404
    assert b"/livez" in body


def test_a_port_that_is_taken_is_an_error_of_configuration(answers):
    again = serving(("127.0.0.1", answers.port), lambda: answers.health, lambda: b"")
    with pytest.raises(ConfigError, match=str(answers.port)), again:
        pass


def test_an_address_may_be_one_of_ipv6(answers):
    """Where a cluster has no other, probes come from nowhere else."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with (
        serving(("::1", 0), lambda: answers.health, lambda: b"") as port,
        urllib.request.urlopen(f"http://[::1]:{port}/livez", timeout=60) as answer,
    ):
        assert answer.status == 200
