"""What queues held in the last days: counted, kept in a log, drawn."""

import re
from datetime import UTC, datetime

import pytest

import cqueue
from cqueue.dispatcher.service.membership import Worker
from cqueue.errors import Unavailable

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

NOW_S = int(datetime.now(UTC).timestamp()) // 60 * 60


@pytest.fixture
def history(shop):
    """Make a history of a dashboard whose time goes on by a minute with each count."""
    from cqueue.web.history import History
    from cqueue.web.shared import Shared

    def make():
        passed_s = [0.0]
        shared = Shared(time_s=lambda: passed_s[0])
        opened.append(shared)
        made = History(shop.client, shared)
        count = made.count

        def minute(at_s):
            passed_s[0] += 60
            count(at_s)

        made.count = minute
        return made

    opened = []
    yield make
    for shared in opened:
        shared.close()


def worker(name, started=0.0, **finished):
    return Worker(name, "host", 1, "app", ("mails",), 4, "1", started, finished=finished)


def test_what_was_counted_survives_a_restart(history, shop, settled):
    history().count(NOW_S - 120)
    shop.client.queue("mails").send(b"one more")
    history().count(NOW_S - 60)
    settled()
    points = history().read("mails", "1h")
    assert [point.at_s for point in points] == [NOW_S - 120, NOW_S - 60]
    assert points[1].depth == points[0].depth + 1
    assert points[0].dead == 5


def test_two_dashboards_that_count_the_same_minute_make_one_point(history, settled):
    for _ in range(2):
        history().count(NOW_S - 60)
    settled()
    assert len(history().read("mails", "1h")) == 1


def test_a_queue_that_nobody_counted_has_no_points(history):
    assert history().read("mails", "24h") == []


def test_records_of_another_form_are_passed_over(history, shop, settled):
    one = history()
    one.count(NOW_S - 60)
    log = shop.client.log("cqueue.history")
    for body in (
        b"",
        b"[]",
        b'{"at":1}',
        b'{"at":"x","queues":{"mails":[1]}}',
        b'{"at":1,"queues":{"mails":{}}}',
    ):
        for partition in range(16):
            log.append("minute", body, partition=partition)
    settled()
    assert len(one.read("mails", "1h")) == 1


def test_what_arrives_is_what_was_finished_and_what_the_queue_grew_by(history, shop, monkeypatch):
    from cqueue.dispatcher.service import membership

    living, passed_s = [worker("a", mails=10), worker("b", mails=5)], iter((100.0, 160.0))
    monkeypatch.setattr(membership, "listed", lambda _client: (living, next(passed_s)))
    one = history()
    one.count(NOW_S - 120)
    assert one.latest("mails").arrived is None
    assert one.latest("mails").handled is None
    shop.client.queue("mails").send_many([cqueue.Message(b"x")] * 3)
    living[:] = [worker("a", mails=17), worker("c", 130.0, mails=4)]  # b has ended, c began
    one.count(NOW_S - 60)
    assert one.latest("mails").handled == 7 + 4
    assert one.latest("mails").arrived == 7 + 4 + 3


def test_a_worker_whose_heartbeat_was_missing_does_not_count_twice():
    from cqueue.web.history import Finished

    finished = Finished()
    assert finished.since([worker("a", mails=10)], 100.0) == {}
    assert finished.since([], 160.0) == {}
    assert finished.since([worker("a", mails=30)], 220.0) == {}
    assert finished.since([worker("a", mails=34)], 280.0) == {"mails": 4}


def test_whatever_goes_wrong_in_a_minute_is_shown_and_tried_again(history, monkeypatch):
    """And what was counted before is not shown as that of the last minute."""
    one = history()
    one.minute(NOW_S - 180)
    assert one.latest("mails")
    with monkeypatch.context() as patched:
        patched.setattr(one, "count", lambda _at_s: {}["missing"])
        one.minute(NOW_S - 120)
    assert "KeyError" in one.trouble
    assert one.latest("mails") is None
    one.minute(NOW_S - 60)
    assert one.trouble is None


def test_a_dashboard_that_closes_in_the_middle_of_a_count_says_nothing(history, monkeypatch):
    one = history()

    def closed(_at_s):
        one.stop()
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(one, "count", closed)
    one.minute(NOW_S - 60)
    assert one.trouble is None


def test_rates_are_unknown_after_a_minute_that_was_not_counted(history):
    """What was finished in several minutes was shown as that of one."""
    one = history()
    one.count(NOW_S - 180)
    one.count(NOW_S - 60)
    assert (one.latest("mails").arrived, one.latest("mails").handled) == (None, None)


def test_a_count_that_cassandra_refuses_is_no_end(history, monkeypatch):
    from cqueue.web import history as module

    def away(*_):
        raise Unavailable("no host answers")

    one = history()
    with monkeypatch.context() as patched:
        patched.setattr(module, "own_log", away)
        with pytest.raises(Unavailable):
            one.count(NOW_S - 120)
    one.count(NOW_S - 60)


def test_a_week_is_drawn_with_120_points_at_most():
    from cqueue.web.history import POINTS, Point, _thinned, spacing_s

    week = [Point(60 * minute, minute, 0, 0, 0, None, None) for minute in range(7 * 24 * 60)]
    thin = _thinned(week, spacing_s("7d"))
    assert len(thin) == POINTS
    assert thin[0].depth == pytest.approx(41.5)  # of minutes 0 to 83
    assert thin[0].arrived is None


# ── The page ──


def test_a_queue_s_page_draws_its_history(browse, settled):
    web = browse()
    site = web.app.state.site
    assert "Nothing was counted in this time" in web.get("/queue/mails").text
    site.history.count(NOW_S - 120)
    site.history.count(NOW_S - 60)
    settled()
    site.shared.forget(("history", "mails", "1h"))
    page = web.get("/queue/mails?span=1h").text
    assert page.count("<svg") == 4
    assert "The last hour" in page
    assert re.search(r'<td class="number" data-label="Depth">\d', page)
    assert "style=" not in page  # the policy allows no inline style


@pytest.mark.parametrize("span", ["", "1y", "<script>"])
def test_a_span_that_there_is_not_is_the_usual_one(browse, span):
    assert "The last 6 hours" in browse().get("/queue/mails", params={"span": span}).text


def test_a_chart_has_gaps_where_nothing_was_counted():
    from cqueue.web.charts import chart

    drawn = chart("Depth", [0, 60, 600, 660], [("", [1, 2, None, 4])], step_s=60, begin_s=0, end_s=660)
    assert drawn.top == 5
    assert drawn.lines[0].path.count("M") == 2
    assert drawn.lines[0].now == 4
    assert chart("Depth", [0], [("", [None])], step_s=60, begin_s=0, end_s=60).is_empty


def test_a_figure_is_drawn_in_its_own_colour_where_the_other_one_is_not_known():
    """Of a queue with very many messages nobody knows what arrives: what is finished was drawn as that."""
    from cqueue.web import charts, site

    figures = [("arriving", [None, None]), ("finished", [1.0, 2.0])]
    chart = charts.chart("Messages a minute", [0, 60], figures, step_s=60, begin_s=0, end_s=60)
    page = str(site._templates().get_template("parts.html").module.drawing(chart, str, "−1h"))
    assert re.findall(r'"now (line.)">(\w+)', page) == [("line1", "arriving"), ("line2", "finished")]
    assert re.findall(r'"line (line.)"', page) == ["line2"]


def test_a_chart_that_ended_an_hour_ago_tells_no_value_of_now():
    from cqueue.web.charts import chart

    drawn = chart("Depth", [0, 60], [("", [1, 2])], step_s=60, begin_s=0, end_s=3600)
    assert drawn.lines[0].now is None
    assert drawn.lines[0].path


def test_that_no_history_is_kept_is_said_beside_the_charts_of_before(browse, settled):
    web = browse()
    site = web.app.state.site
    site.history.count(NOW_S - 60)
    settled()
    site.history.trouble = "no <right> to append"
    page = web.get("/queue/mails?span=1h").text
    assert "<svg" in page
    assert "No history is kept: no &lt;right&gt; to append" in page
