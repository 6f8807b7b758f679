"""The page of schedules tells how the last firing of each has ended, as far as the cluster knows."""

import html
import re
from datetime import timedelta

import pytest

import cqueue
from cqueue.client import Client
from cqueue.dispatcher.schedules.schedules import list_all
from cqueue.dispatcher.schedules.triggers import Repeating, RunOnce
from cqueue.errors import BatchTooLarge, DamagedRow, Unavailable
from cqueue.queue import Queue
from cqueue.store.control import ListSchedules
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

MINUTE = timedelta(minutes=1)


class Job:
    """A queue with one task and one schedule, a dispatcher for them, and the page."""

    def __init__(self, client, web, settled):
        self.client, self._web, self._settled = client, web, settled

    def make(self, handler, trigger, *, config=None, **options):
        self.queue = self.client.create_queue("jobs", config)
        self._app = app = cqueue.App(self.client, queue="jobs", retry=cqueue.Retry(max_attempts=1))
        app.task(name="job", **options)(handler)
        self.queue.schedules.add("nightly", trigger, b"{}", task="job", codec="json")

    def fire(self, after_s=61):
        """Let the time come, and run what is due."""
        self._settled(after_s)
        with self._app.dispatcher() as dispatcher:
            assert dispatcher.drain(timedelta(seconds=20))

    def shown(self):
        """The schedule's cells Next and Last on the page, as it is read now."""
        self._web.app.state.site.shared.forget("schedules", "firings")
        page = self._web.get("/schedules")
        assert page.status_code == 200
        row = page.text.partition("nightly")[2].partition("</tr>")[0]
        cells = re.findall(r'<td data-label="(?:Next|Last)">(.*?)</td>', row, re.DOTALL)
        return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in cells]


@pytest.fixture
def job(shop, browse, settled):
    return Job(shop.client, browse(), settled)


def test_a_firing_that_was_done_is_done_if_its_result_is_kept_and_else_gone(job):
    job.make(lambda: 5, RunOnce(delay=MINUTE), result_ttl=timedelta(hours=1))
    assert job.shown()[1] == "–"
    job.fire()
    assert job.shown()[1].endswith("done")


def test_a_firing_of_which_nothing_is_left_is_gone(job):
    job.make(lambda: None, RunOnce(delay=MINUTE))
    job.fire()
    assert job.shown()[1].endswith("gone")


def test_a_firing_that_failed_for_good_is_dead(job):
    def fail():
        raise ValueError("no")

    job.make(fail, RunOnce(delay=MINUTE))
    job.fire()
    assert job.shown()[1].endswith("dead")


def test_a_firing_that_is_to_be_tried_again_waits(job):
    job.make(lambda: cqueue.Snooze(timedelta(hours=1)), RunOnce(delay=MINUTE))
    job.fire()
    assert job.shown()[1].endswith("waiting")


def test_a_firing_whose_handler_runs_is_held(job):
    """Of a schedule that goes on before its handlers; of another one, the next firing is what runs."""
    shown = []
    job.make(lambda: shown.append(job.shown()), Repeating(timedelta(hours=1), delay=MINUTE, auto_commit=True))
    job.fire()
    assert shown[0][1].endswith("held")


def test_a_firing_that_runs_is_not_called_overdue(job):
    shown = []
    job.make(lambda: shown.append(job.shown()), Repeating(timedelta(hours=1), delay=MINUTE))
    job.fire()
    assert shown == [["running", "–"]]
    assert job.shown()[0].startswith("in ")


@pytest.mark.parametrize("after_s", [61, 2 * 3600 + 65])
def test_a_history_tells_how_a_firing_ended(job, settled, after_s):
    """Also of one that came late, whose message has the id of an earlier time."""
    job.make(
        lambda: cqueue.Cancel("not today"),
        Repeating(timedelta(hours=1), delay=MINUTE),
        config=cqueue.QueueConfig(history=timedelta(days=1)),
    )
    job.fire(after_s)
    settled(5)
    until(lambda: job.queue.history(schedule="nightly"))
    assert job.shown()[1].endswith("cancelled")


def test_the_end_of_an_earlier_firing_is_not_shown_as_the_last_ones(job, settled):
    """Also while another schedule of the queue has the queue's history read from further back."""
    ends = [cqueue.Cancel("not today"), cqueue.Cancel("not today")]
    job.make(
        lambda: ends.pop() if ends else None,
        Repeating(timedelta(minutes=3), delay=MINUTE),
        config=cqueue.QueueConfig(history=timedelta(days=1)),
    )
    job.queue.schedules.add("once", RunOnce(delay=MINUTE), b"{}", task="job", codec="json")
    job.fire()
    settled(5)
    until(lambda: job.queue.history(schedule="nightly") and job.queue.history(schedule="once"))
    assert job.shown()[1].endswith("cancelled")
    job.fire(181)
    assert not ends
    assert not job.shown()[1].endswith("cancelled")


def test_a_queue_of_which_something_cannot_be_read_takes_no_other_ones_firings_along(job, shop, monkeypatch):
    from cqueue.web import firings

    job.make(lambda: None, RunOnce(delay=MINUTE))
    job.fire()
    listed = firings.schedules(shop.client)
    assert len(firings.last(shop.client, listed)) == 2

    def damaged(_queue, _id):
        raise DamagedRow("damaged")

    monkeypatch.setattr(Queue, "result", damaged)
    assert set(firings.last(shop.client, listed)) == {("mails", "digest/daily")}
    find_many = Queue.find_many

    def too_large(queue, ids):
        if queue.name == "jobs":
            raise BatchTooLarge("more than 10,000")
        return find_many(queue, ids)

    monkeypatch.setattr(Queue, "find_many", too_large)
    assert set(firings.last(shop.client, listed)) == {("mails", "digest/daily")}


def test_the_page_says_that_the_ends_of_firings_are_old(job, monkeypatch):
    from cqueue.web import firings

    job.make(lambda: None, RunOnce(delay=MINUTE))
    job.shown()
    site = job._web.app.state.site

    def away(*_):
        raise Unavailable("Cassandra is away")

    monkeypatch.setattr(firings, "last", away)
    entry = site.shared._entries["firings"]
    entry.tried_s, entry.read_s = float("-inf"), entry.read_s - 60
    page = job._web.get("/schedules").text
    assert "Not up to date" in page
    assert "Cassandra is away" in page


def test_a_queue_that_was_deleted_since_takes_no_firings_along(job, shop):
    from cqueue.web import firings

    job.make(lambda: None, RunOnce(delay=MINUTE))
    listed = firings.schedules(shop.client)
    shop.client.delete_queue("jobs")
    assert set(firings.last(shop.client, listed)) == {("mails", "digest/daily")}


def test_the_schedules_of_many_queues_are_read_side_by_side():
    """One after the other, a page of 2,000 queues would show after three seconds that Cassandra is away.

    `cqueue schedule list` reads them in the same way.
    """
    from cqueue.web import firings

    rounds = []

    class Counting(FaultyStore):
        def together(self, operations):
            rounds.append([type(operation) for operation in operations])
            return super().together(operations)

    with Client(Counting()) as client:
        for number in range(130):
            client.create_queue(f"jobs-{number:03}")
        for name in ("jobs-007", "jobs-129"):
            client.queue(name).schedules.add("nightly", Repeating(MINUTE), b"", task="job")
        for read in (firings.schedules, list_all):
            rounds.clear()
            assert [one.queue for one in read(client)] == ["jobs-007", "jobs-129"]
            assert sum(kinds.count(ListSchedules) for kinds in rounds) == 130
            assert len(rounds) < 20
