"""The pages of queues and messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from cqueue.dispatcher.service import membership
from cqueue.errors import BadInput, CqueueError
from cqueue.message import MAX_BODY, MAX_HEADERS, MAX_HEADERS_BYTES, queue_of
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.web import charts, reading, shown, wide_rows
from cqueue.web.access import Role
from cqueue.web.history import MINUTE_S, SPANS, spacing_s
from cqueue.web.shared import Begun, Known
from cqueue.web.site import audited, field_of, go, require, site_of

if TYPE_CHECKING:
    from cqueue.config import QueueConfig
    from cqueue.dispatcher.service.membership import Worker
    from cqueue.history import HistoryEvent
    from cqueue.queue import StoredMessage

SIZE: Final = 100
"""Queues on one page of the list."""
SPAN_WORDS: Final = {"1h": "hour", "6h": "6 hours", "24h": "24 hours", "7d": "7 days"}
DEFAULT_SPAN: Final = "6h"
STATE_WORDS: Final = {
    reading.ALL: "all", "ready": "ready", "claimed": "in flight", "waiting": "to be retried",
    "delayed": "delayed", "expired": "expired", "quarantined": "damaged",
}  # fmt: skip
"""States by which messages are listed, and how pages call them: as the figures of a queue do."""
Row = tuple[str, "reading.QueueState | None", str]
"""A queue, its figures if they are known, and why they are not."""
ORDERS: Final[dict[str, Callable[[reading.QueueState], float]]] = {
    "depth": lambda state: state.depth,
    "oldest": lambda state: -1 if state.oldest_s is None else state.oldest_s,
    "flight": lambda state: state.stats.claimed,
    "dead": lambda state: state.stats.dead or 0,
}
KINDS: Final[dict[str, Callable[[reading.QueueState], bool]]] = {
    "busy": lambda state: state.depth > 0,
    "dead": lambda state: bool(state.stats.dead),
    "paused": lambda state: state.paused,
}


def queues(request: Request) -> Response:
    """Show all queues: sorted, filtered, 100 to a page."""
    site, query = site_of(request), request.query_params
    names = site.shared.get("queues", lambda: reading.names(site.client))
    states = reading.queue_states(site.client, site.shared, names.value)
    kind, order = query.get("only", ""), query.get("sort", "name")
    part = query.get("q", "").strip().casefold()
    found = [_row(name, known) for name, known in states.items() if part in name.casefold()]
    rows = _sorted([row for row in found if _is(kind, row[1])], order)
    page, pages = _page(query.get("page", "1"), len(rows))
    counted = [known for known in states.values() if isinstance(known, Known)]
    return site.page(
        request,
        "queues.html",
        knowns=[names, *counted],
        tables=["queues"],
        rows=rows[(page - 1) * SIZE : page * SIZE],
        found=len(rows),
        total=len(names.value),
        uncounted=len(states) - len(counted),
        sums=_sums([known.value for known in counted], is_all=len(counted) == len(states)),
        latest=site.history.latest,
        order=order,
        only=kind,
        q=query.get("q", ""),
        page=page,
        pages=pages,
    )


def _sums(states: Sequence[reading.QueueState], *, is_all: bool) -> dict[str, Any]:
    """Return the sums of some queues. at_least: which are lower bounds; all, if there are other queues."""
    ages = [state.oldest_s for state in states if state.oldest_s is not None]
    at_least = set[str]().union(*(state.stats.at_least for state in states))
    return {
        "depth": sum(state.depth for state in states),
        "flight": sum(state.stats.claimed for state in states),
        "dead": sum(state.stats.dead or 0 for state in states),
        "paused": sum(state.paused for state in states),
        "oldest_s": max(ages, default=None),
        "at_least": at_least if is_all else {"live", "claimed", "dead", "paused"},
    }


def _row(name: str, known: Known[reading.QueueState] | CqueueError | None) -> Row:
    if isinstance(known, Known):
        return name, known.value, ""
    return name, None, "not counted yet" if known is None else f"not counted: {known}"


def _is(kind: str, state: reading.QueueState | None) -> bool:
    """Return whether a queue is of the kind asked for; one that is not counted is of none."""
    return kind not in KINDS or (state is not None and KINDS[kind](state))


def _sorted(rows: list[Row], order: str) -> list[Row]:
    """Sort by name, or by a figure with the highest first; what is not counted comes last."""
    rows.sort(key=lambda row: row[0])
    figure = ORDERS.get(order)
    if figure is not None:
        rows.sort(key=lambda row: float("inf") if row[1] is None else -figure(row[1]))
    return rows


def _page(text: str, found: int) -> tuple[int, int]:
    """Return which page to show, and how many there are."""
    pages = max(1, -(-found // SIZE))
    return (min(max(1, int(text)), pages) if text.isdecimal() and len(text) < 9 else 1), pages


def queue(request: Request) -> Response:
    """Show one queue: figures now and over time, messages, configuration, what its letters died of."""
    site, name = site_of(request), request.path_params["name"]
    if name.endswith(DEAD_SUFFIX):
        return go(request, "queue", name.removesuffix(DEAD_SUFFIX), "dead")
    client, shared, query = site.client, site.shared, request.query_params
    span = query.get("span", "")
    span = span if span in SPANS else DEFAULT_SPAN
    # All begin side by side, and then are waited for.
    state_read = shared.begin(("state", name), lambda: reading.queue_state(client, name))
    detail_read = shared.begin(("detail", name), lambda: reading.queue_detail(client, name))
    workers = shared.begin("workers", lambda: membership.listed(client))
    points = shared.begin(
        ("history", name, span), lambda: site.history.read(name, span), fresh_s=MINUTE_S / 2
    )
    listed_read = _listed(request, name)
    rows_read = None
    if query.get("rows"):
        rows_read = shared.begin(("wide_rows", name), lambda: wide_rows.read(client, name))
    state, detail = state_read.get(), detail_read.get()
    letters = None
    if state.value.stats.dead:
        letters = shared.find(("letters", name, reading.ALL_LETTERS), lambda: reading.letters(client, name))
    listed = None if listed_read is None else listed_read.get()
    rows = None if rows_read is None else rows_read.get()
    config, messages = detail.value
    drawn, living = points.find(), workers.find()
    serving = None if living is None else [worker for worker in living.value[0] if worker.polls(name)]
    return site.page(
        request,
        "queue.html",
        knowns=[one for one in (state, detail, letters, listed, rows) if one is not None],
        name=name,
        listed=None if listed is None else listed.value,
        states=STATE_WORDS,
        wanted_state=query.get("state"),
        is_later="token" in query,
        wide_rows=None if rows is None else rows.value,
        limits=_limits(config, serving),
        serving=serving,
        state=state.value,
        config=_settings(config),
        messages=messages,
        letters=None if letters is None else letters.value,
        peeked=reading.PEEKED,
        span=span,
        spans=SPAN_WORDS,
        charts=None
        if drawn is None
        else charts.of_queue(drawn.value, hours=SPANS[span], step_s=spacing_s(span)),
        history_trouble=site.history.trouble,
    )


def _listed(request: Request, name: str) -> Begun[reading.Listed] | None:
    """Begin to read the messages of the state that is asked for; None if the first messages are shown."""
    wanted, token = request.query_params.get("state"), request.query_params.get("token") or None
    if not wanted:
        return None
    if wanted not in STATE_WORDS:
        raise BadInput(f"{wanted[:50]!r} is no state of a message")
    site = site_of(request)
    return site.shared.begin(
        ("listed", name, wanted, token),
        lambda: reading.listed_messages(site.client, name, wanted, token),
    )


def _settings(config: QueueConfig) -> list[tuple[str, Any]]:
    """Return the settings of a queue by their names in words. None: it keeps no history."""
    values = {one.name.replace("_", " "): getattr(config, one.name) for one in fields(config)}
    return [(name, "none" if value is None else value) for name, value in values.items()]


def _limits(config: QueueConfig, serving: Sequence[Worker] | None) -> dict[str, str]:
    """Return what bounds the work on a queue: configuration, workers, and what holds for all queues."""
    limits = {
        "deliveries": f"{config.max_attempts}, then the message is dead"
        if config.max_attempts
        else "any number",
        "a delivery": f"{shown.duration(config.visibility)}, unless its consumer extends it",
        "claims at once": f"{config.shards} in each time shard, up to {config.max_shards} if that is altered",
        "a body": f"{MAX_BODY >> 20} MiB",
        "headers": f"{MAX_HEADERS}, of {MAX_HEADERS_BYTES >> 10} KiB together",
    }
    if serving is not None:
        threads = sum(worker.threads for worker in serving)
        limits["handlers at once"] = f"{threads} (workers: {len(serving)})"
        tasks = {task for worker in serving for task in worker.tasks or () if task is not None}
        if tasks and all(worker.tasks is not None for worker in serving):
            limits["tasks known"] = ", ".join(sorted(tasks))
    return limits


def change_queue(request: Request) -> Response:
    """Pause a queue, or let it go on."""
    require(request, Role.OPERATE)
    site, name, what = site_of(request), request.path_params["name"], field_of(request, "do")
    opened = site.client.queue(name)
    changes = {"pause": (opened.pause, "paused"), "resume": (opened.resume, "resumed")}
    if what not in changes:
        raise BadInput(f"{what[:50]!r} is nothing that can be done to a queue")
    change, told = changes[what]
    with audited(request, f"{what}_queue", queue=name):
        change()
    site.shared.forget(("state", name), ("detail", name))
    return go(request, "queue", name, told=told)


# ── Messages ──


def find(request: Request) -> Response:
    """Go to the message whose id was typed."""
    id_ = request.query_params.get("id", "").strip()
    name = queue_of(id_)
    if name.endswith(DEAD_SUFFIX):
        return go(request, "queue", name.removesuffix(DEAD_SUFFIX), "dead", id_)
    return go(request, "queue", name, "message", id_)


def message(request: Request, *, with_body: bool = False) -> Response:
    """Show one message, and what became of it."""
    site, name, id_ = site_of(request), request.path_params["name"], request.path_params["id"]
    opened = site.client.queue(name)
    found: StoredMessage | None = opened.find(id_)
    events: list[HistoryEvent] = []
    if opened.config.history is not None:  # a large one takes its time, and comes with a later view
        known = site.shared.find(("message_history", name, id_), lambda: opened.history(id_))
        events = [] if known is None else known.value
    return site.page(
        request,
        "message.html",
        status=200 if found or events else 404,
        name=name,
        id=id_,
        states=STATE_WORDS,
        message=found,
        body=shown.body(found.body) if found is not None and with_body else None,
        events=events,
    )


def message_body(request: Request) -> Response:
    """Show one message with its body, and write down who has looked."""
    require(request, Role.BODIES)
    name, id_ = request.path_params["name"], request.path_params["id"]
    with audited(request, "show_body", queue=name, message=id_):
        return message(request, with_body=True)
