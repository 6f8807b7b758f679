"""A daemon starts, obeys signals, drains, and says how it is. Its own thread here, real processes below."""

import math
import os
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import structlog

import cqueue
from cqueue import client as clients
from cqueue.dispatcher.application.import_string import TargetError
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.service import daemon, membership
from cqueue.dispatcher.service.daemon import Daemon, DaemonSettings, Ordered, signals_to
from cqueue.dispatcher.service.parent import CHILD_MODULE, ParentProcess
from cqueue.dispatcher.service.supervisor import Child, ChildProcess, Ended, Signalled
from cqueue.dispatcher.service.systemd import Notifier
from cqueue.errors import ConfigError, QueueNotFound, Refused, Unavailable
from cqueue.runtime import process
from cqueue.store.operations import ReadQueue
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("brisk_server")]

APP = """
    import secrets, threading
    import cqueue

    URL = f"memory://daemon-{secrets.token_hex(4)}"
    app = cqueue.App(URL)
    began, go_on, seen = threading.Semaphore(0), threading.Event(), []

    @app.task(queue="mail", name="send")
    def send(to):
        seen.append(to)
        began.release()

    @app.task(queue="slow", name="slow")
    def slow(to):
        began.release()
        while not go_on.wait(0.01):
            pass
        seen.append(to)

    def handle(message, context):
        seen.append(message.body)
        began.release()

    def handing_on():
        from cqueue.spool import Spool

        other = cqueue.App(URL, spool=lambda: Spool("daemon-spool"))
        other.task(queue="mail", name="send")(send)

        @other.task(queue="slow", name="slow")
        def slow(to):
            other.tasks["send"].enqueue(to)

        return other

    @app.task(queue="slow", name="clean")
    def clean():
        seen.append("called instead of dispatched")

    def make():
        return app

    def fail():
        raise KeyError("SHOP_ENV")

    def leave():
        raise SystemExit("SHOP_ENV is not set")

    number = 7
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A module with an application on a store of its own; what it defines."""
    (tmp_path / "daemon_shop.py").write_text(textwrap.dedent(APP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import daemon_shop

    daemon_shop.app.setup()
    yield daemon_shop
    daemon_shop.go_on.set()
    del sys.modules["daemon_shop"]


@pytest.fixture(autouse=True)
def brisk(monkeypatch):
    """Daemons report fifty times as often."""
    monkeypatch.setattr(daemon, "TICK_S", 0.02)


class Running:
    """A daemon on a thread of its own, and what it reports."""

    def __init__(self, target="daemon_shop:app", *, notifier=None, address=None, **settings):
        self.inbox, self.reports, self.end = queue.SimpleQueue(), queue.SimpleQueue(), queue.SimpleQueue()
        self.daemon = Daemon(
            DaemonSettings(target=target, **settings),
            self.inbox,
            notifier=notifier,
            tell=self.reports.put,
            health_address=address,
        )
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            self.end.put(self.daemon.run())
        except BaseException as exc:  # noqa: BLE001 - raised again where the test waits
            self.end.put(exc)

    def signal(self, number=signal.SIGTERM):
        self.inbox.put(Signalled(number))

    def until(self, **wanted):
        """The next report that says so."""
        while True:
            report = self.reports.get(timeout=20)
            if wanted.items() <= report.items():
                return report

    @property
    def code(self):
        """What it ends with."""
        end = self.end.get(timeout=60)
        self.thread.join()
        if isinstance(end, BaseException):
            raise end
        return end


@pytest.fixture
def run(shop):
    """Start daemons; all have ended after the test."""
    started = []

    def start(*args, **options):
        started.append(Running(*args, **options))
        return started[-1]

    yield start
    shop.go_on.set()
    for running in started:
        running.signal()
        running.thread.join(30)
        assert not running.thread.is_alive()


def test_the_garbage_collector_is_set_before_the_first_message(shop, run, monkeypatch):
    handled = []
    monkeypatch.setattr(process, "settle_garbage", lambda: handled.append(list(shop.seen)))
    shop.app.tasks["send"].enqueue("ann")
    run()
    assert shop.began.acquire(timeout=20)
    assert handled == [[]]


# ── Signals ──


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains_what_runs_and_the_code_is_0(shop, run, number):
    shop.app.tasks["slow"].enqueue("a")
    running = run()
    shop.began.acquire()
    running.signal(number)
    running.until(reason="stopping")
    shop.go_on.set()
    assert running.code == 0
    assert shop.seen == ["a"]


def test_what_was_not_started_is_given_back_without_using_an_attempt(shop, run):
    """Messages are given back at the first signal, so that others can take them while handlers here go on."""
    slow = shop.app.tasks["slow"]
    for number in range(6):
        slow.enqueue(str(number))
    running = run(options={"threads": 2, "consumers": 1})
    shop.began.acquire()
    shop.began.acquire()
    running.signal()
    with clients.connect(shop.URL) as other, other.queue("slow").consumer() as consumer:
        received = []
        while len(received) < 4:
            received += consumer.receive(10)
        assert {message.attempt for message in received} == {1}
    shop.go_on.set()
    assert running.code == 0


def test_handlers_that_outlive_the_grace_cost_code_1(shop, run):
    shop.app.tasks["slow"].enqueue("a")
    running = run(grace_s=0.1)
    shop.began.acquire()
    running.signal()
    assert running.code == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_leaves_at_once(shop, run, number, code):
    shop.app.tasks["slow"].enqueue("a")
    running = run()
    shop.began.acquire()
    running.signal()
    running.signal(number)
    assert running.code == code
    assert not shop.seen


def test_a_parents_order_drains_and_a_second_one_changes_nothing(shop, run):
    shop.app.tasks["slow"].enqueue("a")
    running = run()
    shop.began.acquire()
    running.inbox.put(Ordered("stop"))
    running.inbox.put(Ordered("the parent has gone"))
    running.until(reason="stopping")
    shop.go_on.set()
    assert running.code == 0


def test_signals_of_the_process_come_into_the_inbox():
    """Real ones; one that is ignored, as under nohup, stays ignored."""
    inbox = queue.SimpleQueue()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_to(inbox):
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
            assert inbox.get(timeout=20) == Signalled(signal.SIGTERM)
            assert inbox.get(timeout=20) == Signalled(signal.SIGINT)
        assert inbox.empty()
    finally:
        signal.signal(signal.SIGHUP, before)


# ── What is run ──


def test_drain_ends_when_nothing_is_due(shop, run):
    for number in range(20):
        shop.app.tasks["send"].enqueue(number)
    assert run(drain=True).code == 0
    assert sorted(shop.seen) == list(range(20))


def test_only_the_queues_that_are_named_are_received_from(shop, run):
    shop.app.tasks["send"].enqueue("a")
    shop.app.tasks["slow"].enqueue("b")
    assert run(queues=("mail",), drain=True).code == 0
    assert shop.seen == ["a"]


def test_a_handler_function_runs_with_queues(shop, run, monkeypatch):
    monkeypatch.setenv("CQUEUE_URL", shop.URL)
    shop.app.client.queue("mail").send(b"x")
    assert run("daemon_shop:handle", queues=("mail",), drain=True).code == 0
    assert shop.seen == [b"x"]


def test_a_daemon_of_many_queues_names_a_few_in_its_log(shop, run, monkeypatch):
    """A line with 100,000 names has megabytes, and collectors of logs cut it."""
    monkeypatch.setenv("CQUEUE_URL", shop.URL)
    names = [f"q{number}" for number in range(daemon.NAMED + 2)]
    for name in names:
        shop.app.client.create_queue(name)
    with structlog.testing.capture_logs() as lines:
        assert run("daemon_shop:handle", queues=names, drain=True).code == 0
    (ready,) = [line for line in lines if line["event"] == "daemon_ready"]
    assert (ready["queues"], ready["more"]) == (names[: daemon.NAMED], 2)


def test_a_function_that_makes_an_application_runs(shop, run):
    shop.app.tasks["send"].enqueue("a")
    assert run("daemon_shop:make", drain=True).code == 0
    assert shop.seen == ["a"]


def test_what_handlers_enqueue_waits_in_no_spool(shop, run, tmp_path):
    """Messages go to Cassandra at once: the processes of a daemon could not all have the spool open."""
    shop.app.tasks["slow"].enqueue("a")
    assert run("daemon_shop:handing_on", drain=True).code == 0
    assert shop.seen == ["a"]
    assert not (tmp_path / "daemon-spool").exists()


@pytest.mark.parametrize(
    ("target", "settings", "error", "said"),
    [
        ("daemon_shop:handle", {}, TargetError, "--queues"),
        ("daemon_shop:fail", {}, TargetError, r"daemon_shop:fail failed:\n\nTraceback.*\n.*daemon_shop.py"),
        ("daemon_shop:leave", {}, TargetError, "SHOP_ENV is not set"),
        ("daemon_shop:number", {}, TargetError, "is int; it takes a cqueue.App"),
        ("daemon_shop:app", {"queues": ("mial",)}, QueueNotFound, "Did you mean 'mail'"),
        ("daemon_shop:app", {"options": {"threads": 1, "consumers": 2}}, ConfigError, "consumers"),
    ],
)
def test_what_cannot_run_is_said(run, target, settings, error, said):
    with pytest.raises(error, match=said):
        _ = run(target, **settings).code


@pytest.mark.parametrize("queues", [(), ("slow",)])
def test_a_task_in_place_of_its_application_is_not_called(shop, run, queues):
    """One without arguments looks like a factory of an application, any other like a handler."""
    with pytest.raises(TargetError, match="clean is a task"):
        _ = run("daemon_shop:clean", queues=queues).code
    assert shop.seen == []


def test_metrics_that_take_long_are_told_less_often(monkeypatch):
    """A child of 20,000 queues would do nothing else; its health is told each second."""
    now_s, reports = [1000.0], []

    def take_a_second():
        now_s[0] += 1.0
        return []

    made = Daemon(DaemonSettings(target="shop"), queue.SimpleQueue(), tell=reports.append)
    monkeypatch.setattr(daemon, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(made._metrics, "families", take_a_second)
    for _ in range(41):
        made._report()
        now_s[0] += 1.0
    made._report(is_last=True)
    assert [place for place, report in enumerate(reports) if "metrics" in report] == [0, 19, 38, 41]
    assert all(report["alive"] for report in reports)


# ── Outages ──


def test_an_outage_at_the_start_is_waited_out(shop, run, monkeypatch):
    """A machine that boots starts Cassandra and its clients together."""
    monkeypatch.setattr(daemon, "FIRST_RETRY_S", 0.01)
    connect, failures = clients.connect, iter([Unavailable("away")] * 3)

    def unsteady(url, *, lazy):
        for failure in failures:
            raise failure
        return connect(url, lazy=lazy)

    shop.app.tasks["send"].enqueue("a")
    shop.app._link.client = None
    monkeypatch.setattr(clients, "connect", unsteady)
    assert run(drain=True).code == 0
    assert shop.seen == ["a"]
    assert next(failures, None) is None


def test_a_function_that_makes_an_application_is_called_once_however_often_the_start_fails(
    shop, run, monkeypatch
):
    """Each application connects a client, and a grant may be missing for hours."""
    monkeypatch.setattr(daemon, "FIRST_RETRY_S", 0.01)
    make, made, failures = shop.make, [], iter([Refused("no grant")] * 3)

    def noted():
        made.append(make())
        return made[-1]

    def unsteady(*args, **options):
        for failure in failures:
            raise failure
        return dispatcher(*args, **options)

    dispatcher = shop.app.dispatcher
    monkeypatch.setattr(shop, "make", noted)
    monkeypatch.setattr(shop.app, "dispatcher", unsteady)
    shop.app.tasks["send"].enqueue("a")
    assert run("daemon_shop:make", drain=True).code == 0
    assert (made, shop.seen) == ([shop.app], ["a"])


def test_a_signal_ends_that_wait(shop, run, monkeypatch):
    def away(_url, **_options):
        raise Unavailable("away")

    shop.app._link.client = None
    monkeypatch.setattr(clients, "connect", away)
    running = run()
    assert running.until(reason="starting")["alive"] is True
    running.signal()
    assert running.code == 0


def assert_leaves(running, answer):
    """A signal ends the process, though what it waits for is answered only afterwards."""
    running.signal()
    try:
        with pytest.raises(SystemExit) as left:
            assert running.code is None, "the start goes on, and would keep the process"
        assert left.value.code == 0
    finally:
        answer.set()


def test_a_signal_ends_an_attempt_that_gets_no_answer(shop, run, monkeypatch):
    """Nodes that hang accept connections: systemd would kill the daemon before an attempt ends."""
    began, answer = threading.Event(), threading.Event()

    def hang(_url, **_options):
        began.set()
        answer.wait()
        raise Unavailable("no answer")

    shop.app._link.client = None
    monkeypatch.setattr(clients, "connect", hang)
    monkeypatch.setattr(daemon, "leave", sys.exit)
    running = run()
    assert began.wait(20)
    for _ in range(3):  # reports go on meanwhile, by which a parent knows that it lives
        running.until(reason="starting")
    assert_leaves(running, answer)


def test_a_start_that_fails_after_it_has_connected_goes_on_with_that_client(shop, run, monkeypatch):
    """Each attempt left one open. A dispatcher looks up its queues when it is made, and as it starts."""
    monkeypatch.setattr(daemon, "FIRST_RETRY_S", 0.01)
    connect, start, failures, made = clients.connect, Dispatcher.start, iter([Unavailable("away")] * 3), []

    def noted():
        made.append(connect(shop.URL))
        return made[-1]

    def unsteady(dispatcher):
        for failure in failures:
            raise failure
        start(dispatcher)

    monkeypatch.setattr(clients, "connect", noted)
    monkeypatch.setattr(Dispatcher, "start", unsteady)
    assert run("daemon_shop:handle", queues=("mail",), drain=True).code == 0
    assert (len(made), next(failures, None)) == (1, None)


def test_a_signal_ends_the_start_of_a_dispatcher_whose_nodes_hang(shop, run, monkeypatch):
    """It was made when the module was loaded, and its queues are read anew as it starts."""
    client, began, answer = shop.app.client, threading.Event(), threading.Event()
    shop.ready = Dispatcher(client.queue("mail"), shop.handle)
    client._catalog._forget()
    execute = client._driver.store.execute

    def hang(operation):
        if isinstance(operation, ReadQueue):
            began.set()
            answer.wait()
        return execute(operation)

    monkeypatch.setattr(client._driver.store, "execute", hang)
    monkeypatch.setattr(daemon, "leave", sys.exit)
    running = run("daemon_shop:ready")
    assert began.wait(20)
    assert_leaves(running, answer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("target", ["large_shop:app", "large_shop:make"])
def test_a_signal_while_the_application_is_loaded_ends_the_process(tmp_path, number, target):
    """A large application may take longer to load than its user, or systemd, waits."""
    (tmp_path / "large_shop.py").write_text(
        textwrap.dedent("""
        import sys, threading

        def make():
            print("loading", flush=True)
            threading.Event().wait()

        if "large_shop:app" in sys.argv:
            make()
    """)
    )
    command = [sys.executable, "-m", "cqueue", "dispatch", target]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "loading\n"
            process.send_signal(number)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def test_a_child_that_loads_its_application_ends_at_its_parents_order(tmp_path):
    (tmp_path / "large_shop.py").write_text(
        textwrap.dedent("""
        import pathlib, threading

        pathlib.Path(__file__).with_name("loading").touch()
        threading.Event().wait()
    """)
    )
    inbox = queue.SimpleQueue()
    settings = DaemonSettings(target="large_shop:app", log="json", app_dir=str(tmp_path))
    child = ChildProcess(CHILD_MODULE, asdict(settings), inbox)
    try:
        until((tmp_path / "loading").exists)
        child.tell("stop")
        notice = inbox.get(timeout=30)
        assert isinstance(notice, Ended)
        assert notice.code == 0
    finally:
        child.kill()


# ── What it says of itself ──


def test_systemd_hears_of_start_life_and_end(run, tmp_path):
    """READY when messages are received, the watchdog at half its interval, STOPPING when a signal came."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        running = run(notifier=Notifier(str(tmp_path / "notify"), watchdog_s=0.1))
        heard = [systemd.recv(1000)]
        while b"WATCHDOG=1" not in heard:
            heard.append(systemd.recv(1000))
        assert heard[0] == b"READY=1"
        running.signal()
        while heard[-1] != b"STOPPING=1":
            heard.append(systemd.recv(1000))
        assert b"STATUS=running" in heard
        assert running.code == 0


def test_the_watchdog_is_not_fed_while_a_thread_has_ended(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Dispatcher, "dead_threads", lambda _: ("cqueue-fetcher-0",))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        running = run(notifier=Notifier(str(tmp_path / "notify"), watchdog_s=0.02))
        for _ in range(3):
            assert running.until(alive=False)["reason"] == "ended: cqueue-fetcher-0"
        running.signal()
        assert running.code == 0
        heard = []
        while not heard or heard[-1] != b"STOPPING=1":
            heard.append(systemd.recv(1000))
        assert b"WATCHDOG=1" not in heard[heard.index(b"STATUS=ended: cqueue-fetcher-0") :]
        assert b"READY=1" not in heard


def test_its_row_tells_who_runs_what_and_is_gone_at_the_end(shop, run):
    running = run(queues=("mail",), options={"threads": 3})
    running.until(ready=True)
    with clients.connect(shop.URL) as client:
        while not (found := membership.listed(client)[0]):
            running.until(ready=True)
        (worker,) = found
        assert (worker.app, worker.queues, worker.threads) == ("daemon_shop:app", ("mail",), 3)
        assert (worker.pid, worker.state) == (os.getpid(), "running")
        running.signal()
        assert running.code == 0
        assert membership.listed(client)[0] == []


def test_probes_are_answered_from_the_start_to_the_end(shop, run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shop.app.tasks["send"].enqueue("a")
    running = run(address=("127.0.0.1", port))
    running.until(ready=True)
    shop.began.acquire()
    assert get(port, "/livez")[0] == get(port, "/readyz")[0] == 200
    assert b'cqueue_messages_total{outcome="succeeded",queue="mail"}' in get(port, "/metrics")[1]
    until(lambda: b'cqueue_handler_seconds_count{queue="mail",task="send"} 1.0' in get(port, "/metrics")[1])
    until(lambda: b'cqueue_queue_dead{queue="mail"} 0.0' in get(port, "/metrics")[1])
    shop.app.tasks["slow"].enqueue("b")
    shop.began.acquire()
    running.signal()
    running.until(reason="stopping")
    assert (get(port, "/livez")[0], get(port, "/readyz")[0]) == (200, 503)


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read()


def test_events_have_stable_names(shop, run):
    with structlog.testing.capture_logs() as lines:
        shop.app.tasks["send"].enqueue("a")
        assert run(drain=True).code == 0
    names = [line["event"] for line in lines]
    for name in ("daemon_starting", "daemon_ready", "daemon_stopping", "daemon_stopped"):
        assert name in names
    assert not any("'a'" in str(line) for line in lines)


# ── Processes ──


@pytest.fixture
def seeded(tmp_path, monkeypatch):
    """An application whose every process has a store of its own, with messages in it."""
    (tmp_path / "seeded_shop.py").write_text(
        textwrap.dedent("""
        import os, pathlib
        import cqueue

        app = cqueue.App("memory://seeded")

        @app.task(queue="mail", name="send")
        def send(number):
            with open("journal", "a") as out:
                out.write(f"{os.getpid()} {number}\\n")
            if number == 2:
                try:
                    pathlib.Path("killed").touch(exist_ok=False)  # by one of them only
                except FileExistsError:
                    return
                os.kill(os.getpid(), 9)

        app.setup()
        for number in range(3):
            send.enqueue(number)
    """)
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_children_are_real_processes_that_are_replaced_and_drained(seeded):
    """One is killed by its own message; another takes its place, and all end by themselves.

    The line about the dead one names the message that it was handling, though it had no time to say so.
    """
    inbox = queue.SimpleQueue()
    options = {"threads": 1, "consumers": 1}
    fleet = ParentProcess(
        DaemonSettings(target="seeded_shop:app", drain=True, log="json", options=options), 2, inbox
    )
    with structlog.testing.capture_logs() as lines:
        assert fleet.run() == 0
    said = [line for line in lines if line["event"] == "child_ended"]
    (killed,) = [line for line in said if line["code"] != 0]
    (run,) = killed["running"]
    assert (run["task"], run["queue"], run["attempt"], killed["handlers"]) == ("send", "mail", 1, 1)
    assert cqueue.MessageId(run["message_id"]).locate()
    assert not any("running" in line for line in said if line is not killed)
    journal = (seeded / "journal").read_text().split("\n")[:-1]
    assert len({line.split()[0] for line in journal}) == 3
    assert b"cqueue_restarts_total 1.0" in fleet.exposition(), "who found nothing more to do was not replaced"


def test_a_child_that_is_just_starting_survives_what_a_terminal_sends_to_all(tmp_path):
    """Ctrl-C while Python loads: the parent orders the end. A SIGTERM of its own drains it."""
    (tmp_path / "idle_shop.py").write_text(
        textwrap.dedent("""
        import cqueue

        app = cqueue.App("memory://idle")
        app.task(queue="mail", name="send")(print)
        app.setup()
    """)
    )
    inbox = queue.SimpleQueue()
    settings = DaemonSettings(target="idle_shop:app", log="json", app_dir=str(tmp_path))
    child = ChildProcess(CHILD_MODULE, asdict(settings), inbox)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(child.pid, number)
    while not isinstance(notice := inbox.get(timeout=60), Ended):
        pass
    assert notice.code == 0


def test_a_child_that_has_drained_calls_what_its_application_has_registered(tmp_path):
    """An exporter of spans sends its last batch there. A thread that never ends keeps no child."""
    (tmp_path / "tidy_shop.py").write_text(
        textwrap.dedent("""
        import atexit, pathlib, threading
        import cqueue

        atexit.register(pathlib.Path(__file__).with_name("tidied").touch)
        threading.Thread(target=threading.Event().wait, daemon=False).start()
        app = cqueue.App("memory://tidy")
        app.task(queue="mail", name="send")(print)
    """)
    )
    inbox = queue.SimpleQueue()
    settings = DaemonSettings(target="tidy_shop:app", log="json", app_dir=str(tmp_path), drain=True)
    ChildProcess(CHILD_MODULE, asdict(settings), inbox)
    while not isinstance(notice := inbox.get(timeout=60), Ended):
        pass
    assert notice.code == 0
    assert (tmp_path / "tidied").exists()


def test_a_child_ends_though_what_its_application_has_registered_does_not():
    """Its parent would kill it as silent, and start another one, though all was drained."""
    script = """
        import atexit, threading
        from cqueue.dispatcher.service import daemon

        daemon.LAST_CALLS_S = 0.01
        atexit.register(threading.Event().wait)
        daemon.end_child(0)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert subprocess.run(command, timeout=20, check=False).returncode == 0


POOL = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    held = []

    def hold(path):
        held.append(open(path, "w"))

    pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
"""


@pytest.fixture
def fifo(tmp_path, monkeypatch):
    """A fifo that a process of a pool keeps open; return whether none does any more."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    number = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)

    def is_over():
        try:
            return os.read(number, 1) == b""
        except BlockingIOError:
            return False

    yield is_over
    os.close(number)


@pytest.mark.parametrize("end", ["drained", "killed"])
def test_a_childs_processes_of_a_pool_end_with_it(tmp_path, fifo, end):
    """They would wait for work for ever."""
    (tmp_path / "pooled_shop.py").write_text(
        textwrap.dedent(POOL)
        + textwrap.dedent("""
        import atexit, pathlib
        import cqueue

        atexit.register(pathlib.Path("tidied").touch)
        app = cqueue.App("memory://pooled")
        app.task(queue="mail", name="send")(print)

        def make():
            pool.submit(hold, "fifo").result()
            return app
    """)
    )
    inbox = queue.SimpleQueue()
    settings = DaemonSettings(
        target="pooled_shop:make", log="json", app_dir=str(tmp_path), drain=end == "drained"
    )
    child = ChildProcess(CHILD_MODULE, asdict(settings), inbox)
    while not isinstance(notice := inbox.get(timeout=60), Ended):
        if end == "killed" and notice.report.get("ready"):
            child.kill()
    assert notice.code == (0 if end == "drained" else -signal.SIGKILL)
    until(fifo)
    assert (tmp_path / "tidied").exists() is (end == "drained")


def test_a_childs_last_calls_are_made_though_a_pool_has_work(tmp_path, fifo):
    script = textwrap.dedent(POOL) + textwrap.dedent("""
        import atexit, pathlib, threading
        from cqueue.dispatcher.service import daemon

        def work():
            threading.Event().wait()

        daemon.POOLS_S, daemon.LAST_CALLS_S = 0.01, 60
        atexit.register(pathlib.Path("tidied").touch)
        pool.submit(hold, "fifo").result()
        pool.submit(work)
        daemon.end_child(0)
    """)
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
    until(fifo)
    assert (tmp_path / "tidied").exists()


def test_processes_of_a_pool_end_with_a_process_that_leaves(fifo):
    script = textwrap.dedent(POOL) + textwrap.dedent("""
        from cqueue.dispatcher.service import daemon

        pool.submit(hold, "fifo").result()
        daemon.leave(3)
    """)
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 3
    until(fifo)


def test_an_attempt_that_gets_no_answer_does_not_keep_the_process(tmp_path):
    """As the driver does: the end of Python waits for the lock of a cluster that is connecting."""
    (tmp_path / "stuck_shop.py").write_text(
        textwrap.dedent("""
        import threading
        from cqueue import App, client

        def connect(*_, **__):
            threading.Thread(target=threading.Event().wait, daemon=False).start()
            print("connecting", flush=True)
            threading.Event().wait()

        client.connect = connect
        app = App("cassandra://db1/shop?local_dc=dc1")
        app.task(queue="mail", name="send")(print)
    """)
    )
    command = [sys.executable, "-m", "cqueue", "dispatch", "stuck_shop:app"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "connecting\n"
            process.terminate()
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def test_a_process_that_a_handler_forks_ends_at_a_signal():
    """A pool of processes ends its workers so, and waits until they have ended."""
    script = """
        import os, queue, signal, threading
        from cqueue.dispatcher.service.daemon import signals_to

        def handle():
            pid = os.fork()
            if not pid:
                os.write(told, b"x")
                threading.Event().wait(60)
                os._exit(0)
            forked.put(pid)

        with signals_to(queue.SimpleQueue()):
            forked, (heard, told) = queue.SimpleQueue(), os.pipe()
            threading.Thread(target=handle).start()
            pid = forked.get()
            os.read(heard, 1)
            os.kill(pid, signal.SIGTERM)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{-signal.SIGTERM}\n"


@pytest.mark.parametrize("what", ["sys.stdout.close()", "os.close(1)"])
def test_a_handler_that_has_closed_its_output_changes_no_exit_code(what):
    """Nor is what it has left to write a reason to wait for its threads."""
    script = f"import os, sys; from cqueue.dispatcher.service import daemon; print(); {what}; daemon.leave(3)"
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False).returncode == 3


@pytest.mark.parametrize("code", ["import missing_library", "def app(): import missing_library"])
def test_an_application_that_cannot_be_imported_or_made_is_said_once(tmp_path, monkeypatch, code):
    (tmp_path / "broken_shop.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetError, match="missing_library"):
        ParentProcess(DaemonSettings(target="broken_shop:app", log="json"), 2, queue.SimpleQueue()).run()


def test_a_parent_feeds_a_watchdog_of_less_than_two_seconds():
    waits = []

    def get(timeout):
        waits.append(timeout)
        raise queue.Empty

    notifier = Notifier("@nobody", watchdog_s=0.5)
    fleet = ParentProcess(DaemonSettings(target="shop:app"), 1, SimpleNamespace(get=get), notifier=notifier)
    fleet._supervisor.slots[0].start_at_s = math.inf  # without a child
    fleet._step()
    assert waits == [0.25]


def test_a_parent_that_does_not_move_is_not_alive():
    """While it looks after its children it is, whatever they are: it replaces them itself."""
    fleet = ParentProcess(DaemonSettings(target="shop:app"), 2, queue.SimpleQueue())
    assert fleet.health() == daemon.Health(alive=True, ready=False, reason="no process")
    supervisor = fleet._supervisor
    supervisor.slots[1].child = Child(
        None, 0.0, 0.0, health=daemon.Health(False, False, "ended: cqueue-lease-extender")
    )
    assert fleet.health() == daemon.Health(
        alive=True, ready=False, reason="child 1: ended: cqueue-lease-extender"
    )
    supervisor.looked_s -= 61
    assert not fleet.health().alive
