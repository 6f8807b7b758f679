"""The pages of dead letters: look, choose, see what would be done, do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from cqueue.audit import of_letters
from cqueue.errors import BadInput, OutcomeUnknown
from cqueue.web import reading, shown
from cqueue.web.access import Role
from cqueue.web.site import audited, field_of, fields_of, require, site_of

if TYPE_CHECKING:
    from cqueue.dead_letters import DeadLetters, LettersResult

MOST_FILTER: Final = 200
"""Characters of a filter."""
OPERATIONS: Final = ("redrive", "drop")


def letters(request: Request) -> Response:
    """Show the oldest letters that fit the filters, with what they died of."""
    site, name, query = site_of(request), request.path_params["name"], request.query_params
    wanted = _wanted(query.get)
    known = site.shared.get(("letters", name, wanted), lambda: reading.letters(site.client, name, wanted))
    return site.page(
        request,
        "letters.html",
        knowns=[known],
        name=name,
        wanted=wanted,
        found=known.value,
        most=reading.MOST_LETTERS,
    )


def letter(request: Request, *, with_body: bool = False) -> Response:
    """Show one letter with its traceback."""
    site, name, id_ = site_of(request), request.path_params["name"], request.path_params["id"]
    found = site.client.queue(name).dead_letters.get(id_)
    body = shown.body(found.body) if with_body and not found.body_lost else None
    return site.page(request, "letter.html", name=name, letter=found, body=body)


def letter_body(request: Request) -> Response:
    """Show one letter with its body, and write down who has looked."""
    require(request, Role.BODIES)
    name, id_ = request.path_params["name"], request.path_params["id"]
    with audited(request, "show_body", queue=name, letter=id_):
        return letter(request, with_body=True)


def settle(request: Request) -> Response:
    """Redrive or drop letters: first say what would be done, and do that when it is confirmed.

    What is confirmed are ids, so that letters which come meanwhile are not swept along. If one of them is
    gone, because somebody else was quicker, nothing is done.
    """
    require(request, Role.OPERATE)
    site, name = site_of(request), request.path_params["name"]
    operation, step = field_of(request, "operation"), field_of(request, "step")
    if operation not in OPERATIONS or step not in {"look", "do"}:
        raise BadInput(f"{operation[:50]!r} is nothing that can be done to dead letters")
    dead = site.client.queue(name).dead_letters
    apply = dead.redrive if operation == "redrive" else dead.drop
    if step == "look":
        chosen, more = _chosen(request, dead)
        result = apply(chosen, dry_run=True)
        return _answer(request, "settle.html", operation, result, more=more)
    chosen = _checked(fields_of(request, "id"))
    with audited(request, f"{operation}_letters", queue=name, letters=len(chosen)) as more_fields:
        result = apply(chosen)
        more_fields.update(of_letters(result))
    site.shared.forget(("state", name), ("detail", name), ("letters", name, reading.ALL_LETTERS))
    site.shared.forget(("letters", name, _posted(request)))
    return _answer(request, "settled.html", operation, result, more=False)


def _answer(
    request: Request, template: str, operation: str, result: LettersResult, *, more: bool
) -> Response:
    return site_of(request).page(
        request,
        template,
        name=request.path_params["name"],
        operation=operation,
        result=result,
        unknown=[one for one in result.failed if isinstance(one[1], OutcomeUnknown)],
        undone=[one for one in result.failed if not isinstance(one[1], OutcomeUnknown)],
        more=more,
        most=reading.MOST_LETTERS,
        wanted=_posted(request),
    )


def _posted(request: Request) -> reading.LetterFilter:
    """Return the filters of a form. They are percent-encoded: browsers change line breaks in fields."""
    return _wanted(lambda name, _: unquote("".join(fields_of(request, name))))


def _wanted(given: Callable[[str, str], str]) -> reading.LetterFilter:
    task, reason = given("task", ""), given("reason", "")
    if max(len(task), len(reason)) > MOST_FILTER:
        raise BadInput(f"a filter has {MOST_FILTER} characters at most")
    return reading.LetterFilter(task.strip() or None, reason.strip() or None, given("kind", "") or None)


def _chosen(request: Request, dead: DeadLetters) -> tuple[list[str], bool]:
    """Return the ids that were ticked, or those of all letters that fit the filters; and whether more fit."""
    if field_of(request, "which") == "ticked":
        return _checked(fields_of(request, "id")), False
    found = dead.list(reading.MOST_LETTERS, **_posted(request)._asdict())
    return [str(letter.id) for letter in found], len(found) == reading.MOST_LETTERS


def _checked(ids: list[str]) -> list[str]:
    """Return the ids if there are any, and not too many."""
    if not ids:
        raise BadInput("no letter is chosen: tick some, or take all that fit")
    if len(ids) > reading.MOST_LETTERS:
        raise BadInput(f"one call takes {reading.MOST_LETTERS:,} letters at most")
    return ids
