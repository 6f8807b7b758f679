"""Each page of the dashboard, and each change that can be made there."""

import html
import re
from collections import Counter
from datetime import timedelta
from threading import Event

import pytest

import cqueue
from cqueue.client import inside
from cqueue.dispatcher.service import membership
from cqueue.errors import DamagedRow, LogNotFound, OutcomeUnknown, TooManyTombstones, Unavailable
from cqueue.message import short
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.rendezvous import own_name
from cqueue.store.quarantine import Damage
from tests.web.conftest import SECRET
from tests.web.markup import live_parts

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

from cqueue.web import Access, application
from cqueue.web.reading import SAMPLE

SOON = timedelta(seconds=10)


@pytest.fixture
def web(browse):
    return browse()


def text_of(response):
    """The page's text, without tags, in one line."""
    assert response.status_code == 200, response.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.text)).split())


# ── Queues ──


def test_queues_are_shown_with_their_figures(web):
    shown = text_of(web.get("/"))
    assert "idle 0 – 0 0 – – 0 active" in shown
    assert re.search(r"mails 4 \ds 0 2 – – 5 active", shown), shown  # with the schedule's next firing


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("q=AI", ["mails"]),
        ("only=dead", ["mails"]),
        ("only=paused", []),
        ("sort=depth", ["mails", "idle"]),
        ("sort=name", ["idle", "mails"]),
        ("sort=nonsense&page=-3&only=nonsense", ["idle", "mails"]),
        ("page=99", ["idle", "mails"]),
    ],
)
def test_queues_are_sorted_and_filtered(web, query, names):
    assert re.findall(r'<th scope="row"><a href="/queue/([^"]+)"', web.get(f"/?{query}").text) == names


def test_no_queue_is_no_error(browse):
    with cqueue.connect("memory://") as empty:
        web = browse(app=application(empty, access=Access()))
        for path, says in {
            "/": "There is no queue yet",
            "/schedules": "There is no schedule yet",
            "/logs": "There is no log yet",
            "/workers": "No process runs handlers",
        }.items():
            assert says in text_of(web.get(path))


def test_a_thousand_queues_come_100_to_a_page(browse):
    with cqueue.connect("memory://") as client:
        for number in range(1000):
            client.create_queue(f"jobs-{number:04}")
        web = browse(app=application(client, access=Access()))
        page = web.get("/?page=2")
        assert re.findall(r"/queue/(jobs-\d+)\"", page.text) == [f"jobs-{n:04}" for n in range(100, 200)]
        assert "1,000 of 1,000 queues" in text_of(page)


def test_a_queue_is_shown_with_messages_configuration_and_causes_of_death(web, shop):
    shown = text_of(web.get("/queue/mails"))
    assert "ConnectionRefused send 4" in shown
    assert "Timeout ping 1" in shown
    assert "visibility 30s" in shown
    assert "history none" in shown
    assert f"/queue/mails/message/{shop.message}" in web.get("/queue/mails").text


def test_pausing_and_resuming_a_queue(web, shop):
    shown = text_of(web.post("/queue/mails", data={"do": "pause"}))
    assert shop.client.queue("mails").paused
    assert "The queue is paused" in shown
    assert "mails paused" in shown
    assert "The queue goes on" in text_of(web.post("/queue/mails", data={"do": "resume"}))
    assert not shop.client.queue("mails").paused


@pytest.mark.parametrize("form", [{"do": "purge"}, {}])
def test_what_is_no_change_is_refused(web, shop, form):
    assert web.post("/queue/mails", data=form).status_code in {400, 415}
    assert shop.client.queue("mails").stats(exact=True).live == 4


def test_an_open_page_gets_what_comes_later(web, browse):
    """The parts that it renews are there from the beginning, also while they hold nothing."""
    assert live_parts(web.get("/queue/idle").text).keys() == live_parts(web.get("/queue/mails").text).keys()
    with cqueue.connect("memory://") as nothing:
        empty = browse(app=application(nothing, access=Access())).get("/")
        assert live_parts(empty.text).keys() == live_parts(web.get("/").text).keys()
        assert "There is no queue yet" in live_parts(empty.text)["live-rows"]


def test_a_page_travels_compressed(web):
    """It is asked for every few seconds, also over a telephone's connection."""
    assert web.get("/").headers["content-encoding"] == "gzip"


def test_an_open_page_gets_what_others_change(web, shop):
    """Whether the queue is paused, and the button that undoes it, are renewed; the button works there."""
    before = live_parts(web.get("/queue/mails").text)["live-state"]
    assert ("active" in before, ">Pause<" in before) == (True, True)
    web.post("/queue/mails", data={"do": "pause"})
    after = live_parts(web.get("/queue/mails").text)["live-state"]
    assert ("paused" in after, ">Resume<" in after) == (True, True)
    action, value = (re.search(rf'{name}="([^"]+)"', after)[1] for name in ("action", "value"))
    web.post(action, data={"do": value})
    assert not shop.client.queue("mails").paused


def test_a_queue_that_was_deleted_meanwhile(web, shop):
    assert web.get("/queue/idle").status_code == 200
    shop.client.delete_queue("idle")
    web.app.state.site.shared.forget(("state", "idle"), ("detail", "idle"), "queues")
    for answer in (web.get("/queue/idle"), web.post("/queue/idle", data={"do": "pause"})):
        assert answer.status_code == 404
        assert "Not there (any more)" in answer.text
    assert "idle" not in re.findall(r'/queue/([^"]+)"', web.get("/").text)


# ── Messages ──


def listed(page):
    """The states of the messages that a queue's page lists, and the address of the next page, if any."""
    part = live_parts(page.text)["live-messages"]
    states = re.findall(r'<td data-label="State">\s*<span class="state (\w+)">', part)
    after = re.search(r'href="([^"]+)#first-title" rel="next"', part)
    return states, after and html.unescape(after[1])


@pytest.mark.parametrize(
    ("state", "states"),
    [
        ("all", {"ready": 2, "claimed": 2, "delayed": 2}),
        ("ready", {"ready": 2}),
        ("claimed", {"claimed": 2}),
        ("delayed", {"delayed": 2}),  # one is the next firing of the schedule
        ("waiting", {}),
        ("quarantined", {}),
    ],
)
def test_messages_are_listed_by_state(web, shop, state, states):
    queue = shop.client.queue("mails")
    with queue.consumer() as consumer:
        taken = consumer.receive(2)
        queue.send_many([cqueue.Message(b"more")] * 2)
        page = web.get(f"/queue/mails?state={state}")
        assert len(taken) == 2
    assert Counter(listed(page)[0]) == states
    assert states or "There is none." in text_of(page)


def test_a_message_s_state_is_called_as_the_figures_call_it(web, shop):
    with shop.client.queue("mails").consumer() as consumer:
        taken = consumer.receive(1)[0]
        assert '<span class="state claimed">in flight</span>' in web.get("/queue/mails").text
        message = text_of(web.get(f"/queue/mails/message/{taken.id}"))
        assert f"Message {short(taken.id)} in flight" in message


def test_messages_of_a_state_come_a_page_at_a_time(web, shop):
    shop.client.queue("idle").send_many([cqueue.Message(b"x", priority=n % 3) for n in range(45)])
    address, pages, seen = "?state=ready", [], []
    while address:
        page = web.get(f"/queue/idle{address}")
        states, address = listed(page)
        pages.append(len(states))
        seen += re.findall(r"/queue/idle/message/([^\"]+)", page.text)
    assert (pages[:2], sum(pages), len(set(seen))) == ([20, 20], 45, 45)
    assert "From the beginning" in page.text


@pytest.mark.parametrize("query", ["state=nonsense", "state=ready&token=nonsense", "state=all&token=%00"])
def test_a_state_or_a_place_that_there_is_not_is_refused(web, query):
    assert web.get(f"/queue/mails?{query}").status_code == 400


def test_wide_rows_are_shown_when_somebody_asks(web, shop):
    assert "live-wide-rows" not in live_parts(web.get("/queue/mails").text)
    with shop.client.queue("mails").consumer() as consumer:
        taken = consumer.receive(2)
        rows = live_parts(web.get("/queue/mails?rows=1").text)["live-wide-rows"]
    held = sum(map(int, re.findall(r'data-label="In flight">([\d,]+)<', rows)))
    assert held >= len(taken) == 2
    unclaimed = map(int, re.findall(r'data-label="Unclaimed">(\d+)<', rows))
    assert sum(unclaimed) == 1  # the one that is due in an hour
    assert re.search(r'data-label="Oldest">\s*<time [^>]+>in \d', rows)
    assert 'data-label="Shard">open<' in rows  # that of the schedule's next firing
    shop.client.queue("idle").send_many([cqueue.Message(b"x")] * 500)
    many = live_parts(web.get("/queue/idle?rows=1").text)["live-wide-rows"]
    assert re.search(r'data-label="Unclaimed">\d+\+<', many)  # not all are counted
    shop.client.create_queue("empty")
    assert "The queue has no wide rows" in text_of(web.get("/queue/empty?rows=1"))


def test_a_queue_s_limits_are_shown(web, shop):
    """Those of its configuration, those of all queues, and how many handlers its workers run at once."""
    shop.beat(tasks=("send", None))
    shown = text_of(web.get("/queue/mails"))
    for told in ("deliveries 5, then the message is dead", "a body 1 MiB", "handlers at once 8 (workers: 1)"):
        assert told in shown
    assert "tasks known send" in shown
    assert "Workers 1 " in shown
    idle = text_of(web.get("/queue/idle"))
    assert "handlers at once 0 (workers: 0)" in idle
    assert "Workers 0 " in idle


def test_a_message_is_shown_without_its_body_until_somebody_asks(web, shop):
    path = f"/queue/mails/message/{shop.message}"
    shown = web.get(path)
    assert "tenant acme" in text_of(shown)
    assert "4111" not in shown.text
    assert f"{len(SECRET)} bytes; it is logged" in text_of(shown)
    one = shop.client.queue("idle").send(b"x")
    assert " 1 byte; it is logged" in text_of(web.get(f"/queue/idle/message/{one}"))
    assert '{"card":"4111"}' in text_of(web.post(path, data={}))


def test_a_message_is_found_by_its_id(web, shop):
    answer = web.get("/message", params={"id": f" {shop.message} "})
    assert answer.url.path == f"/queue/mails/message/{shop.message}"
    letter = web.get("/message", params={"id": shop.letters[0]})
    assert letter.url.path == f"/queue/mails/dead/{shop.letters[0]}"


def test_a_message_that_is_gone_and_a_text_that_is_no_id(web, shop):
    shop.client.queue("mails").cancel(shop.message)
    gone = web.get(f"/queue/mails/message/{shop.message}")
    assert gone.status_code == 404
    assert "no such message (any more)" in gone.text
    for nonsense in ("", "nonsense", "%00", "../../x", "A" * 68):
        assert web.get("/message", params={"id": nonsense}).status_code in {400, 404}


def test_a_body_that_is_no_text_is_shown_in_base64(web, shop):
    ids = [message.id for message in shop.client.queue("mails").peek(10) if message.body == b"\xff\xfe"]
    assert "base64 //4=" in text_of(web.post(f"/queue/mails/message/{ids[0]}", data={}))


# ── Dead letters ──


def ticked(page):
    return re.findall(r'name="id" value="([^"]+)"', page.text)


def test_letters_are_shown_escaped_filtered_and_one_by_one(web, shop):
    everything = web.get("/queue/mails/dead")
    assert "<script>alert" not in everything.text
    assert len(ticked(everything)) == 5
    assert '<label><input type="checkbox" data-all> tick all that are shown</label>' in everything.text
    assert len(ticked(web.get("/queue/mails/dead?reason=refused"))) == 4
    assert len(ticked(web.get("/queue/mails/dead?task=ping"))) == 1
    assert "No dead letter fits" in web.get("/queue/mails/dead?task=nobody").text
    shown = text_of(web.get(f"/queue/mails/dead/{shop.letters[0]}"))
    for told in ("attempts 1", "redrives 0", f"holder {own_name()}"):
        assert told in shown
    assert "1 byte, as text" in text_of(web.post(f"/queue/mails/dead/{shop.letters[0]}", data={}))


def test_a_group_of_letters_leads_to_its_letters_and_no_others(web, shop):
    """Also where one kind of reason is a part of another one; a redrive of all that fit takes those."""
    queue = shop.client.queue("mails")
    queue.send_many([cqueue.Message(b"x", task="send")])
    with queue.consumer() as consumer:
        while b"x" not in (found := {one.body: one for one in consumer.receive(10, wait=SOON)}):
            pass
        found[b"x"].dead("ConnectionRefusedElsewhere: 1")
    web.app.state.site.shared.forget(("letters", "mails", (None, None, None)))
    page = web.get("/queue/mails/dead")
    (link,) = re.findall(r'href="(/queue/mails/dead\?[^"]*kind=ConnectionRefused[&"][^"]*)"?', page.text)
    group = web.get(html.unescape(link).rstrip('"'))
    assert len(ticked(group)) == 4
    assert "of the kind ConnectionRefused" in text_of(group)
    form = {"operation": "redrive", "step": "look", "which": "all", "kind": "ConnectionRefused"}
    assert "4 letters would be sent back" in text_of(web.post("/queue/mails/dead", data=form))


@pytest.mark.parametrize("kind", ["Could not\nparse it", "No\r\nanswer", "a%41+b &é"])
def test_a_form_names_a_kind_exactly(web, shop, kind):
    """Also after a browser, which ends each line within a field by CR LF."""
    with shop.client.queue("mails").consumer() as consumer:
        consumer.receive(1)[0].dead(f"{kind}: x")
    page = web.get("/queue/mails/dead", params={"kind": kind})
    assert len(ticked(page)) == 1
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page.text)
    sent = {name: re.sub(r"\r\n?|\n", "\r\n", html.unescape(value)) for name, value in fields}
    would = web.post("/queue/mails/dead", data={**sent, "operation": "redrive", "which": "all"})
    assert "1 letter would be sent back" in text_of(would)


def test_a_redrive_shows_first_what_it_would_do(web, shop):
    queue = shop.client.queue("mails")
    form = {"operation": "redrive", "step": "look", "which": "all", "reason": "refused", "task": ""}
    would = web.post("/queue/mails/dead", data=form)
    assert "4 letters would be sent back to mails" in text_of(would)
    assert len(list(queue.dead_letters)) == 5
    done = web.post("/queue/mails/dead", data={**form, "step": "do", "id": ticked(would)})
    assert "4 letters sent back to mails" in text_of(done)
    assert [letter.task for letter in queue.dead_letters] == ["ping"]
    assert queue.stats(exact=True).live == 8


def test_a_drop_takes_only_what_was_ticked(web, shop):
    form = {"operation": "drop", "which": "ticked", "id": [shop.letters[0], shop.letters[2]]}
    assert "2 letters of mails would be deleted" in text_of(
        web.post("/queue/mails/dead", data={**form, "step": "look"})
    )
    assert "2 letters dropped" in text_of(web.post("/queue/mails/dead", data={**form, "step": "do"}))
    left = {str(letter.id) for letter in shop.client.queue("mails").dead_letters}
    assert left == set(shop.letters) - {shop.letters[0], shop.letters[2]}


def test_of_two_tabs_the_second_does_nothing(web, shop):
    """What one tab has sent back is not there for the other, which says so and touches no other letter."""
    form = {"operation": "redrive", "step": "do"}
    web.post("/queue/mails/dead", data={**form, "id": shop.letters[:1]})
    second = web.post("/queue/mails/dead", data={**form, "id": shop.letters[:2]})
    assert second.status_code == 404
    assert len(list(shop.client.queue("mails").dead_letters)) == 4


@pytest.mark.parametrize(
    "form",
    [
        {"operation": "purge", "step": "do", "id": "x"},
        {"operation": "drop", "step": "do"},
        {"operation": "drop", "step": "look", "which": "ticked"},
        {"operation": "drop", "step": "do", "id": "nonsense"},
        {"operation": "drop", "step": "do", "id": ["x"] * 1001},
    ],
)
def test_a_choice_of_no_letters_or_of_nonsense_is_refused(web, shop, form):
    assert web.post("/queue/mails/dead", data=form).status_code == 400
    assert len(list(shop.client.queue("mails").dead_letters)) == 5


def test_an_unknown_outcome_is_said(web, monkeypatch, log_lines):
    def unknown(*_args, **_more):
        raise OutcomeUnknown("the answer did not come")

    monkeypatch.setattr(cqueue.Queue, "pause", unknown)
    answer = web.post("/queue/mails", data={"do": "pause"})
    assert answer.status_code == 503
    assert "not known whether that was done" in answer.text
    assert log_lines("operator_action")[-1]["outcome"] == "unknown"


# ── Schedules, workers, logs ──


def test_schedules_are_paused_resumed_and_fired(web, shop):
    schedules = shop.client.queue("mails").schedules
    assert "digest/daily digest mails active 0 7 * * * UTC" in text_of(web.get("/schedules"))
    form = {"queue": "mails", "key": "digest/daily"}
    assert "The schedule is paused" in text_of(web.post("/schedules", data={**form, "do": "pause"}))
    assert schedules.get("digest/daily").state == "paused"
    web.post("/schedules", data={**form, "do": "resume"})
    assert schedules.get("digest/daily").state == "active"
    before = shop.client.queue("mails").stats(exact=True).live
    assert "The schedule has fired" in text_of(web.post("/schedules", data={**form, "do": "fire"}))
    assert shop.client.queue("mails").stats(exact=True).live == before + 1
    assert web.post("/schedules", data={**form, "do": "remove"}).status_code == 400
    assert web.post("/schedules", data={**form, "key": "none", "do": "pause"}).status_code == 404


def test_workers_are_shown(web, shop):
    shop.beat()
    page = web.get("/workers")
    assert "host-a:7" in text_of(page)
    assert 'class="late"' not in page.text


def test_a_worker_whose_heartbeat_is_late_stands_out(web, shop, monkeypatch):
    shop.beat()
    living, now_s = membership.listed(shop.client)
    monkeypatch.setattr(membership, "listed", lambda _client: (living, now_s + 9))
    assert '<b class="late">9s ago</b>' in web.get("/workers").text


def test_logs_and_subscriptions_are_shown_and_paused(web, shop):
    assert "orders" in text_of(web.get("/logs"))
    assert "billing active" in text_of(web.get("/log/orders"))
    form = {"subscription": "billing", "do": "pause"}
    assert "billing paused" in text_of(web.post("/log/orders", data=form))
    assert "The subscription goes on" in text_of(web.post("/log/orders", data={**form, "do": "resume"}))
    assert web.post("/log/orders", data={**form, "subscription": "none"}).status_code == 404
    assert web.post("/log/orders", data={**form, "do": "delete"}).status_code == 400
    assert shop.client.subscriptions("orders") == ["billing"]
    assert web.get("/log/none").status_code == 404


def test_a_look_at_a_log_brings_no_deleted_subscription_back(web, shop):
    """A heartbeat that was under way as it was deleted is left for a while, so that it is listed still."""
    member = shop.client.subscribe("orders", name="billing", listeners=[print])
    shop.client.delete_subscription("orders", "billing")
    member._member.heartbeat()
    assert shop.client.subscriptions("orders") == ["billing"]
    assert "billing" not in text_of(web.get("/log/orders"))
    assert web.post("/log/orders", data={"subscription": "billing", "do": "pause"}).status_code == 404
    with pytest.raises(LogNotFound):
        shop.client.delete_subscription("orders", "billing")


def test_the_topics_among_the_newest_records_of_a_log_are_counted(web, shop, settled):
    log = shop.client.log("orders")
    log.append("rare", b"1")
    for _ in range(SAMPLE - 1):
        log.append("<often>", b"2")
    settled()
    part = live_parts(web.get("/log/orders").text)["live-log"]
    rows = re.findall(r'<th scope="row">([^<]+)</th><td class="number" data-label="Records">(\d+)<', part)
    assert rows == [("&lt;often&gt;", "199"), ("rare", "1")]
    assert "the newest 200 records; there may be other topics" in part


def test_no_other_topics_are_supposed_where_all_records_are_counted(web, shop, settled):
    shop.client.log("orders").append("rare", b"1")
    settled()
    assert "Counted are all records." in text_of(web.get("/log/orders"))


# ── Trouble ──


def test_while_cassandra_is_away_pages_show_what_was_known_and_since_when(web, monkeypatch):
    web.get("/queue/mails")
    web.get("/")

    def away(*_args, **_more):
        raise Unavailable("no node answers")

    monkeypatch.setattr(cqueue.Queue, "stats", away)
    shared, began_s = web.app.state.site.shared, web.app.state.site.shared._time_s()
    monkeypatch.setattr(shared, "_time_s", lambda: began_s + 3600)
    for path in ("/", "/queue/mails"):
        shown = text_of(web.get(path))
        assert re.search(r"Not up to date\. What is shown was read 1h ago: no node answers", shown)
        assert "mails" in shown


def failing(error):
    """Return a method that raises."""

    def fail(*_args, **_more):
        raise error

    return fail


def test_a_page_of_which_nothing_is_known_says_that_cassandra_is_away(web, monkeypatch):
    monkeypatch.setattr(cqueue.Client, "queues", failing(Unavailable("no node answers")))
    answer = web.get("/")
    assert answer.status_code == 503
    assert "Cassandra does not answer" in answer.text
    assert "no node answers" in answer.text


def test_reads_that_hang_hold_up_one_look_at_a_page_and_for_six_seconds(web, monkeypatch):
    """However many parts of it hang: a browser gives a page up after ten. Some reads follow from others."""
    site, clock_s, release = web.app.state.site, [1e6], Event()
    monkeypatch.setattr(site.history, "start", lambda: None)  # it would wait as well, at each full minute
    monkeypatch.setattr(site.shared, "_time_s", lambda: clock_s[0])
    pages = ("/queue/mails?rows=1&state=all", "/log/orders", "/schedules", "/")
    for path in pages:
        assert web.get(path).status_code == 200
    real = BlockingDriver.run

    def hang(driver, steps):
        release.wait()
        return real(driver, steps)

    def passing(reads, timeout):
        if reads:
            clock_s[0] += timeout

    monkeypatch.setattr("cqueue.web.shared.wait", passing)
    monkeypatch.setattr(BlockingDriver, "run", hang)
    clock_s[0] += 60
    try:
        for longest_s in (6, 0):
            for path in pages:
                began_s = clock_s[0]
                assert "on its way" in text_of(web.get(path))
                assert clock_s[0] - began_s <= longest_s
    finally:
        release.set()


def test_letters_that_cannot_be_read_take_nothing_else_from_a_queue_s_page(web, monkeypatch):
    def away(*_args, **_more):
        raise Unavailable("timed out")

    monkeypatch.setattr("cqueue.dead_letters.DeadLetters.list", away)
    shown = text_of(web.get("/queue/mails"))
    assert "Dead 5" in shown
    assert "All dead letters of mails ; they are still being read" in shown


def test_a_queue_that_cannot_be_counted_says_why(web, monkeypatch):
    """And the others are shown."""
    real = cqueue.Queue.stats

    def stats(queue):
        if queue.name == "idle":
            raise TooManyTombstones("too many tombstones")
        return real(queue)

    monkeypatch.setattr(cqueue.Queue, "stats", stats)
    shown = text_of(web.get("/"))
    assert "idle not counted: too many tombstones" in shown
    assert "mails 4" in shown
    assert "Depth 4+ " in shown  # of the others
    assert "Dead 5+ " in shown


def test_what_is_damaged_is_not_said_to_be_away(web, monkeypatch):
    monkeypatch.setattr(cqueue.Queue, "stats", failing(DamagedRow("column config: no JSON")))
    answer = web.get("/queue/mails")
    assert answer.status_code == 503
    assert "Cassandra does not answer" not in answer.text
    assert "column config" in answer.text


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        ("/", Damage("queues", "broken", ("broken",), "config is <no> JSON object")),
        (
            "/schedules",
            Damage("schedules", "mails@1", ("mails@1", "digest"), "definition is <no> JSON object"),
        ),
        ("/workers", Damage("workers", "", ("fleet", "w"), "info is <no> JSON object")),
        ("/logs", Damage("logs", "broken", ("broken",), "config is <no> JSON object")),
    ],
)
def test_rows_that_are_left_out_because_they_are_damaged_are_named(web, shop, path, damage):
    assert "left out" not in web.get(path).text
    inside(shop.client).quarantine.report(damage)
    shown = text_of(web.get(path))
    assert f"1 damaged row is left out. {damage.address}: {damage.reason}" in shown


def test_what_a_page_says_after_a_change_cannot_be_forged(web):
    page = web.get("/queue/mails?told=Call+0190+and+give+your+token")
    assert "0190" not in page.text


def test_a_template_is_compiled_once_for_all_dashboards_of_a_process(browse, monkeypatch):
    """It takes longer than all else that a page costs."""
    assert browse().get("/queue/mails").status_code == 200
    monkeypatch.setattr("jinja2.Environment.compile", None)
    assert browse().get("/queue/mails").status_code == 200


def test_every_page_works_under_a_prefix(browse, shop):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from cqueue.web import ANYTHING, Access, application

    inner = application(shop.client, access=Access(roles=ANYTHING))
    web = browse(app=Starlette(routes=[Mount("/ops/queues", app=inner)]))
    start = web.get("/ops/queues/")
    assert web.get(re.search(r'href="([^"]+style\.css)"', start.text)[1]).status_code == 200
    seen, todo = set(), ["/ops/queues/"]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        page = web.get(path)
        assert page.status_code == 200, path
        found = re.findall(r'(?:href|action|src)="([^"#]+)"', page.text)
        inner_links = [html.unescape(one) for one in found if not one.startswith("?")]
        assert all(one.startswith("/ops/queues/") for one in inner_links), path
        todo += [
            one for one in inner_links if "/static/" not in one and not one.endswith(("/message", "/dead"))
        ]
        todo += [one for one in inner_links if one.endswith("mails/dead")]
    assert len(seen) > 10
    answer = web.post("/ops/queues/queue/mails", data={"do": "pause"})
    assert answer.url.path == "/ops/queues/queue/mails"


def test_viewers_share_reads(shop, browse, monkeypatch):
    """Ten looks within two seconds count each queue once."""
    counted = []
    real = cqueue.Queue.stats

    def stats(queue):
        if queue._driver is shop.client._driver:  # a thread of an earlier test may count as well
            counted.append(queue.name)
        return real(queue)

    monkeypatch.setattr(cqueue.Queue, "stats", stats)
    web = browse()
    shared, now_s = web.app.state.site.shared, web.app.state.site.shared._time_s()
    monkeypatch.setattr(shared, "_time_s", lambda: now_s)
    for _ in range(10):
        web.get("/")
    assert sorted(counted) == ["idle", "mails"]


def test_short_ids_are_those_of_the_command_line(shop, browse):
    assert short(shop.message) in browse().get("/queue/mails").text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0, "0s"), (59.9, "59s"), (130, "2m10s"), (7200, "2h"), (446_400, "5d4h")],
)
def test_ages_have_two_units_at_most(seconds, text):
    from cqueue.web import shown

    assert shown.age(seconds) == text


@pytest.mark.parametrize(
    ("content", "text", "how"),
    [
        (b"x" + "€".encode() * 30_000, "x" + "€" * 21_845, "text"),  # 64 KiB end within a character
        (b"\x89PNG" + b"\xff" * 70_000, "iVBOR///", "base64"),
    ],
)
def test_a_large_body_that_is_no_text_is_not_shown_as_one(content, text, how):
    """Of a large text the beginning is shown; a picture was shown as what in it looks like text."""
    from cqueue.web import shown

    beginning, said = shown.body(content)
    assert beginning.startswith(text)
    assert said == f"{how}, its first 64 KiB"


def test_a_message_shows_its_history_if_its_queue_keeps_one(shop, browse, told):
    """Also once it is gone; a message of another queue shows none."""
    answer = browse().get(f"/queue/told/message/{told}")
    assert answer.status_code == 200
    assert "What became of it" in answer.text
    assert "5 &lt;is&gt; too much" in answer.text
    assert "was acked, cancelled, or has expired" not in answer.text
    assert "What became of it" not in browse().get(f"/queue/mails/message/{shop.message}").text
