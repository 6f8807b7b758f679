"""Every line goes through one pipe, as JSON or for people."""

import io
import json
import logging
import warnings
from datetime import timedelta

import pytest
import structlog

import cqueue
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.service import logs
from cqueue.message import short
from cqueue.runtime.logs import TRACEBACKS, frames_of
from tests.fix_dispatcher import SOON


@pytest.fixture
def lines():
    """Configure for one test: `lines(style)` gives the stream. Everything is as before afterwards."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    names = (None, "cqueue", logs.DRIVER, TRACEBACKS)
    levels = {name: logging.getLogger(name).level for name in names}

    def configure(style, stream_of=io.StringIO, **options):
        stream = stream_of()
        logs.configure(style, stream=stream, **options)
        return stream

    yield configure
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    root.handlers[:] = before
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def said(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_name_level_time_and_the_fields_bound_to_its_logger(lines):
    stream = lines(logs.Format.JSON)
    logs.logger(queue="mail", attempt=2).info("message_acked", task="send")
    (line,) = said(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "message_acked",
        "level": "info",
        "logger": "cqueue.dispatcher",
        "queue": "mail",
        "attempt": 2,
        "task": "send",
    }


def test_the_drivers_lines_come_through_the_same_pipe_from_warning_on(lines):
    stream = lines(logs.Format.JSON)
    logging.getLogger("cassandra.pool").info("connected")
    logging.getLogger("cassandra.pool").warning("host %s is down", "10.0.0.1")
    (line,) = said(stream)
    assert line["event"] == "host 10.0.0.1 is down"
    assert (line["logger"], line["level"]) == ("cassandra.pool", "warning")


@pytest.mark.parametrize("verbose", [False, True])
def test_people_see_tracebacks_of_the_driver_only_when_they_ask(lines, verbose):
    """It logs one for each node that is away, at each try."""
    stream = lines(logs.Format.CONSOLE, verbose=verbose)
    try:
        int("broken")
    except ValueError:
        logging.getLogger("cassandra.cluster").exception("no connection to %s", "10.0.0.1")
        logging.getLogger("requests").exception("mine")
    assert "no connection to 10.0.0.1" in stream.getvalue()
    assert stream.getvalue().count("Traceback") == 1 + verbose


@pytest.mark.parametrize("verbose", [False, True])
def test_what_the_driver_repeats_of_a_node_is_shown_once_a_minute(lines, monkeypatch, verbose):
    """It logs each attempt to reconnect; other lines are not to drown in them."""
    stream, now_s = lines(logs.Format.JSON, verbose=verbose), [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now_s[0])
    for _ in range(13):
        for host in ("10.0.0.1", "10.0.0.2"):
            logging.getLogger("cassandra.pool").warning("no connection to %s, again in %s s", host, now_s[0])
        logging.getLogger("requests").warning("slow")
        now_s[0] += 5
    told = [line["logger"] for line in said(stream)]
    assert told.count("cassandra.pool") == (26 if verbose else 4)
    assert told.count("requests") == 13


@pytest.mark.parametrize("style", [logs.Format.JSON, logs.Format.CONSOLE])
def test_an_error_that_the_driver_logs_as_a_traceback_is_shown_at_once_too(lines, style):
    """Also on a terminal, which shows no traceback of the driver's."""
    stream = lines(style)
    driver = logging.getLogger("cassandra.cluster")
    driver.warning("100% sure", exc_info=OSError("of this"))
    for error in ("Connection refused", "Connection refused", "certificate expired"):
        driver.warning("Error connecting to %s:", "10.0.0.1", exc_info=OSError(error))
    told = stream.getvalue()
    assert told.count("Error connecting to 10.0.0.1:") == 2
    assert "certificate expired" in told
    assert "100% sure" in told


def test_another_error_of_the_same_node_is_shown_at_once(lines):
    """A node that starts again, and then refuses this client: why is what an operator has to read."""
    stream = lines(logs.Format.JSON)
    refused, expired = OSError("Connection refused"), OSError("certificate expired")
    for pause_s, error in ((0.5, refused), (1.1, refused), (2.0, expired), (4.3, expired)):
        logging.getLogger("cassandra.pool").warning(
            "no connection to %s, again in %s s: %s", "10.0.0.1", pause_s, error
        )
    assert [line["event"].rpartition(": ")[2] for line in said(stream)] == [str(refused), str(expired)]


def test_verbose_shows_what_the_driver_does(lines):
    stream = lines(logs.Format.JSON, verbose=True)
    logging.getLogger("cassandra.pool").info("connected")
    logs.logger().debug("polled")
    assert [line["event"] for line in said(stream)] == ["connected", "polled"]


def test_a_traceback_is_one_field_of_one_line(lines):
    stream = lines(logs.Format.JSON)
    try:
        int("broken")
    except ValueError:
        logs.logger().exception("handler_failed")
    (line,) = said(stream)
    assert "ValueError: invalid literal" in line["exception"]


def test_the_fields_of_a_thread_are_on_lines_of_any_library(lines):
    stream = lines(logs.Format.JSON)
    with structlog.contextvars.bound_contextvars(message="0007"):
        logging.getLogger("requests").warning("slow")
    assert said(stream)[0]["message"] == "0007"


def test_what_json_does_not_know_is_its_text(lines):
    stream = lines(logs.Format.JSON)
    logs.logger().info("odd", value=logs.Format.JSON)
    assert said(stream)[0]["value"] == "Format.JSON"


def test_warnings_are_lines(lines):
    stream = lines(logs.Format.JSON)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)  # as catch_warnings has replaced what was captured
        logging.captureWarnings(capture=True)
        warnings.warn("old", UserWarning, stacklevel=1)
    assert "old" in said(stream)[0]["event"]


def test_the_console_format_is_a_line_of_text_without_colours_off_a_terminal(lines):
    stream = lines(logs.Format.CONSOLE)
    logs.logger(queue="mail").info("daemon_ready")
    text = stream.getvalue()
    assert "daemon_ready" in text
    assert "queue=mail" in text
    assert "\x1b" not in text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_colours_unless_no_color_is_set(lines, monkeypatch):
    """As the tables of the other commands: https://no-color.org."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for wanted in (True, False):
        stream = lines(logs.Format.CONSOLE, Terminal)
        logs.logger().info("daemon_ready")
        assert ("\x1b" in stream.getvalue()) == wanted
        monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("verbose", [False, True])
def test_a_failure_fits_on_a_terminal(lines, shop, monkeypatch, verbose):
    """Short ids, as the commands take them, and the frames of the application; --verbose shows all."""
    monkeypatch.setenv("NO_COLOR", "1")
    stream = lines(logs.Format.CONSOLE, Terminal, verbose=verbose)
    app = cqueue.App(shop, queue="mail")
    app.task(name="load", retry=cqueue.Retry(timedelta(), max_attempts=1))(json.loads)
    app.setup()
    id_ = app.tasks["load"].enqueue("no JSON")
    with app.dispatcher() as dispatcher:
        assert dispatcher.drain(SOON)
    text = stream.getvalue()
    assert ("frames of Python's library" in text) != verbose
    assert ("decoder.py" in text) == verbose
    assert ("[cqueue.dispatcher]" in text) == verbose
    assert f"message_id={id_ if verbose else short(id_)}" in text


def test_the_frames_of_other_libraries_errors_are_shortened_as_well(lines):
    stream = lines(logs.Format.CONSOLE, Terminal)
    try:
        json.loads("no JSON")
    except ValueError:
        logging.getLogger("shop").exception("nothing loaded")
    text = stream.getvalue()
    assert "test_logs.py" in text
    assert "frames of Python's library\njson.decoder.JSONDecodeError" in text


@pytest.mark.parametrize(
    ("link", "text"), [("__cause__", "the direct cause of"), ("__context__", "During handling of")]
)
def test_a_traceback_without_texts_tells_how_errors_are_linked(link, text):
    """Each error once, however they are linked."""
    first, last = KeyError("4929-1111"), ValueError("4929-1111")
    for one, other in ((last, first), (first, last)):
        setattr(one, link, other)
    told = frames_of(last, "said").split("\n\n")
    assert [told[0], told[2]] == ["KeyError", "said"]
    assert text in told[1]
    assert len(told) == 3


# ── Failures ──


SAID = "no such customer"


def charge(_card):
    raise ValueError(SAID)


def failed(shop, attempts=2, **options):
    """Run a task to its death, and forget what else was said."""
    queue = shop.create_queue("mail", exist_ok=True)
    app = cqueue.App(shop)
    policy = cqueue.Retry(timedelta(), max_attempts=attempts)
    app.task(name="charge", queue="mail", retry=policy, **options)(charge)
    app.tasks["charge"].enqueue("4929-1111")
    with Dispatcher(queue, app, ack_interval=timedelta(milliseconds=5)) as dispatcher:
        assert dispatcher.drain(SOON)


def test_a_failure_is_one_line_and_the_last_one_has_the_traceback(lines, shop):
    """A query finds task, message, attempt and error in fields; nothing of the arguments is in any line."""
    stream = lines(logs.Format.JSON)
    failed(shop)
    first, last = [line for line in said(stream) if line["event"].startswith("message_")]
    for line, attempt in ((first, 1), (last, 2)):
        assert (line["queue"], line["task"], line["attempt"]) == ("mail", "charge", attempt)
        assert line["error"] == "ValueError"
        assert line["message_id"] == first["message_id"]
    assert (first["event"], first["level"]) == ("message_retried", "warning")
    assert "exception" not in first
    assert (last["event"], last["level"]) == ("message_dead", "error")
    assert last["exception"].startswith("Traceback")
    assert "in charge" in last["exception"]
    assert "worker_threads.py" not in last["exception"]  # it begins at the handler
    assert "4929" not in stream.getvalue()


@pytest.mark.parametrize("style", [logs.Format.JSON, logs.Format.CONSOLE])
def test_the_text_of_an_error_is_logged_where_the_task_allows_it(lines, shop, style):
    """In field, reason and traceback; otherwise in none of them: a text may quote the arguments."""
    stream = lines(style)
    failed(shop)
    assert SAID not in stream.getvalue()
    assert "attempt 2 of 2: ValueError" in stream.getvalue()
    failed(shop, log_errors=True)
    assert "attempt 2 of 2: ValueError: no such customer" in stream.getvalue()
    assert stream.getvalue().count(SAID) > 2
    texts = [letter.reason for letter in shop.queue("mail").dead_letters.list()]
    assert texts == ["attempt 2 of 2: ValueError: no such customer"] * 2  # the operator asks for the letter


@pytest.mark.parametrize(("style", "verbose"), [(logs.Format.CONSOLE, False), (logs.Format.JSON, True)])
def test_people_and_verbose_logs_see_the_traceback_of_every_failure(lines, shop, style, verbose):
    """Without the values of local variables, whatever is installed."""
    stream = lines(style, verbose=verbose)
    failed(shop, attempts=3)
    assert stream.getvalue().count("in charge") == 3
    assert "4929" not in stream.getvalue()


def test_without_a_daemon_an_application_logs_as_the_daemon_does(shop, caplog):
    """Lines go to the standard library's loggers, the last one with its traceback."""
    failed(shop)
    texts = [record.getMessage() for record in caplog.records if "message_" in record.getMessage()]
    assert ["Traceback" in text for text in texts] == [False, True]
    with caplog.at_level(logging.DEBUG, TRACEBACKS):
        caplog.clear()
        failed(shop)
    texts = [record.getMessage() for record in caplog.records if "message_" in record.getMessage()]
    assert ["Traceback" in text for text in texts] == [True, True]
