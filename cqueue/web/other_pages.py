"""The pages of schedules, workers, logs and subscriptions."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cqueue.audit import SHOWN
from cqueue.dispatcher.service import membership
from cqueue.errors import BadInput, CqueueError
from cqueue.web import firings, reading
from cqueue.web.access import Role
from cqueue.web.shared import Known
from cqueue.web.site import audited, field_of, go, require, site_of

SCHEDULE_CHANGES: Final = {"pause": "schedule-paused", "resume": "schedule-resumed", "fire": "fired"}
"""What can be done to a schedule, and the word by which the page tells that it was done."""
SUBSCRIPTION_CHANGES: Final = {"pause": "subscription-paused", "resume": "subscription-resumed"}


def schedules(request: Request) -> Response:
    """Show the schedules of all queues."""
    site = site_of(request)
    known = site.shared.get("schedules", lambda: firings.schedules(site.client))
    found = site.shared.find("firings", lambda: firings.last(site.client, known.value))
    return site.page(
        request,
        "schedules.html",
        knowns=[known] if found is None else [known, found],
        tables=["queues", "schedules"],
        schedules=known.value,
        firings={} if found is None else found.value,
    )


def change_schedule(request: Request) -> Response:
    """Pause a schedule, let it go on, or fire it now."""
    require(request, Role.OPERATE)
    site = site_of(request)
    queue, key, what = (field_of(request, name) for name in ("queue", "key", "do"))
    if what not in SCHEDULE_CHANGES:  # before anything is written down: the log names actions that there are
        raise BadInput(f"{what[:50]!r} is nothing that can be done to a schedule")
    opened = site.client.queue(queue).schedules
    with audited(request, f"{what}_schedule", queue=queue, schedule=key) as more:
        if what == "pause":
            opened.pause(key)
        elif what == "resume":
            opened.resume(key)
        else:
            more["message"] = str(opened.run_now(key))
    site.shared.forget("schedules", "firings", ("state", queue), ("detail", queue))
    return go(request, "schedules", told=SCHEDULE_CHANGES[what])


def workers(request: Request) -> Response:
    """Show which processes run handlers."""
    site = site_of(request)
    known = site.shared.get("workers", lambda: membership.listed(site.client))
    living, now_s = known.value
    return site.page(request, "workers.html", knowns=[known], tables=["workers"], workers=living, now_s=now_s)


def audit(request: Request) -> Response:
    """Show what operators have done."""
    site = site_of(request)
    known = site.shared.get("actions", site.trail.read)
    return site.page(request, "audit.html", knowns=[known], actions=known.value, most=SHOWN)


def logs(request: Request) -> Response:
    """Show all logs."""
    site = site_of(request)
    names = site.shared.get("logs", site.client.logs)
    states = reading.log_states(site.client, site.shared, names.value)
    return site.page(
        request,
        "logs.html",
        knowns=[names, *states],
        tables=["logs"],
        states=[known.value for known in states],
        uncounted=len(names.value) - len(states),
    )


def log(request: Request) -> Response:
    """Show one log and how far its subscriptions are."""
    site, name = site_of(request), request.path_params["name"]
    client, shared = site.client, site.shared
    state_read = shared.begin(("log", name), lambda: reading.log_state(client, name))
    topics_read = shared.begin(("topics", name), lambda: reading.topics(client, name))
    state = state_read.get()
    found = shared.get_many(
        {
            ("subscription", name, one): partial(reading.subscription_state, client, name, one)
            for one in state.value.subscriptions
        }
    )
    topics = topics_read.find()
    # One that was deleted leaves rows behind for a moment, so that it is listed still.
    known = {one: value for (_, _, one), value in found.items() if not isinstance(value, BadInput)}
    return site.page(
        request,
        "log.html",
        knowns=[state, *(value for value in known.values() if isinstance(value, Known))],
        state=state.value,
        subscriptions=[
            (one, value.value if isinstance(value, Known) else None) for one, value in known.items()
        ],
        topics=topics.value if topics is not None else None,
        troubles={one: str(value) for one, value in known.items() if isinstance(value, CqueueError)},
    )


def change_subscription(request: Request) -> Response:
    """Pause a subscription, or let it go on."""
    require(request, Role.OPERATE)
    site, name = site_of(request), request.path_params["name"]
    one, what = field_of(request, "subscription"), field_of(request, "do")
    if what not in SUBSCRIPTION_CHANGES:
        raise BadInput(f"{what[:50]!r} is nothing that can be done to a subscription")
    opened = reading.subscription(site.client, name, one)
    with audited(request, f"{what}_subscription", log=name, subscription=one):
        opened.pause() if what == "pause" else opened.resume()
    site.shared.forget(("subscription", name, one))
    return go(request, "log", name, told=SUBSCRIPTION_CHANGES[what])
