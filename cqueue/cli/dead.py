"""`cqueue dead`: list, groups, show, redrive, drop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.confirm import YesLater, check_prompt, confirm
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode, error_fields, exit_code, worst
from cqueue.cli.interrupts import going_on
from cqueue.cli.opening import audited, find_queue, open_client, open_queue, say_left_out
from cqueue.cli.options import MaxRedrives, QueueName, Rate, given
from cqueue.cli.render import emit_one, header_pairs, print_list
from cqueue.cli.short_ids import grouped, letter_ids
from cqueue.cli.values import body_text, counted
from cqueue.errors import BadInput, NotDone
from cqueue.message import short

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dead_letters import DeadLetter, DeadLetters, LetterGroup, LettersResult
    from cqueue.message import MessageId

app = typer.Typer(help="Look at dead letters, send them back, drop them.", no_args_is_help=True)

DEFAULT_LIMIT = 50
ABANDONED = "unknown: it was killed, it hung, or it lost its connection"
"""What the sheet of a letter says of a holder that let the message expire."""

Task = Annotated[str | None, "--task NAME", "Letters of this task."]
Reason = Annotated[str | None, "--reason TEXT", "Letters whose reason contains this; case is ignored."]
Kind = Annotated[
    str | None, "--kind TEXT", "Letters of exactly this group's reason, as `dead groups` shows it."
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which letters `redrive` and `drop` are to take."""

    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Of letters, or of the messages that they were; whole or short."),
    ] = None
    task: Task = None
    reason: Reason = None
    kind: Kind = None
    all_: Annotated[bool, "All letters of the queue."] = False

    def check(self) -> None:
        """Refuse all but exactly one way to choose letters.

        Raises:
            BadInput: none or several are given.
        """
        filtered = (self.task, self.reason, self.kind) != (None, None, None)
        if not (self.ids or filtered or self.all_):
            raise BadInput("Say which letters: IDs, --task, --reason, --kind, or --all for all of them.")
        if bool(self.ids) + filtered + self.all_ != 1:
            raise BadInput("Give IDs, or --task with --reason or --kind, or --all: one of these.")
        check_kind(self.reason, self.kind)

    def left_out(self) -> str:
        """Return what the same command has to leave out when it is repeated."""
        return ", without the ids of letters that are gone" if self.ids else ""

    def about(self) -> dict[str, Any]:
        """Return how the letters were chosen, for the log of operators' actions: the first 100 ids."""
        ids = self.ids[:100] if self.ids else None
        return given(ids=ids, task=self.task, reason=self.reason, kind=self.kind, all=self.all_ or None)


def check_kind(reason: str | None, kind: str | None) -> None:
    """Refuse both --reason and --kind.

    Raises:
        BadInput: both are given.
    """
    if reason is not None and kind is not None:
        raise BadInput("Give --reason or --kind, not both.")


@command(app, "list")
def list_letters(
    cli: CliContext,
    name: QueueName,
    *,
    task: Task = None,
    reason: Reason = None,
    kind: Kind = None,
    limit: Annotated[int, "How many, 1 to 10,000."] = DEFAULT_LIMIT,
) -> None:
    """List the dead letters of a queue, the oldest first. With --json an object a line."""
    check_kind(reason, kind)
    with open_queue(cli, name) as queue:
        with cli.status("Looking…"):
            found = queue.dead_letters.list(limit, reason=reason, task=task, kind=kind)
        such = " such" if (task, reason, kind) != (None, None, None) else ""
        none = f"Queue {name} has no{such} dead letters."
        print_list(cli, found, letter_fields, _COLUMNS, none=none, lines=True, spare=("attempts",), cut=True)
    if len(found) == limit:
        cli.remark(
            f"Shown are the oldest {limit:,}. There may be more: --limit goes up to 10,000, and --reason "
            "and --task narrow the list."
        )


@command(app)
def groups(cli: CliContext, name: QueueName, *, task: Task = None, reason: Reason = None) -> None:
    """Count the dead letters of a queue by task and kind of reason, the largest group first.

    A kind is what stands before the first colon of a reason, such as the class of an error; a dispatcher's
    count of attempts is left out. `list`, `redrive` and `drop` take it as --kind, also an empty one. All
    letters are read. With --json an object a line.
    """
    with open_queue(cli, name) as queue:
        with cli.status("Looking…"):
            found = queue.dead_letters.groups(reason=reason, task=task)
        such = " such" if task is not None or reason is not None else ""
        none = f"Queue {name} has no{such} dead letters."
        print_list(cli, found, asdict, _GROUP_COLUMNS, none=none, lines=True, spare=("redriven",), cut=True)


@command(app)
def show(
    cli: CliContext,
    name: QueueName,
    id_: Annotated[str, "ID", "Of the letter or of the message that it was; whole or short."],
) -> None:
    """Show one dead letter with its traceback and its body."""
    with open_queue(cli, name) as queue:
        with cli.status("Looking…"):
            letter = queue.dead_letters.get(*letter_ids(queue.dead_letters, [id_]))
        print_letter(cli, letter, queue=name)


@command(app)
def redrive(
    cli: CliContext,
    name: QueueName,
    chosen: Chosen,
    *,
    rate: Rate = None,
    max_redrives: MaxRedrives = None,
    dry_run: Annotated[bool, "Say what would be done; write nothing."] = False,
) -> None:
    """Send dead letters back to their queue: those of these ids, of a task or reason, or all.

    Each is sent with its task, codec, key, priority and headers, and deleted only when that is stored.
    After an error or an interrupt the same command goes on, without the ids of letters that are gone;
    repeated within hours it makes no copies. A letter that a consumer of the dead-letter queue holds stays.
    """
    from cqueue.dead_letters import LettersResult  # noqa: PLC0415 - not needed for --help
    from cqueue.sending.redriving import check_limits  # noqa: PLC0415 - as above

    limits: dict[str, Any] = {"rate": rate, "max_redrives": max_redrives}
    check_limits(**limits)
    chosen.check()
    with _choosing(cli, name, chosen) as (client, dead, which), cli.status("Sending back…"):
        if dry_run:
            result = dead.redrive(**which, **limits, dry_run=True)
        elif found := dead._chosen(**which):  # noqa: SLF001 - a public redrive would read them once more
            send = partial(dead._redrive_those_left, found, **limits)  # noqa: SLF001 - as above
            with going_on(cli, chosen.left_out()):
                result = _audited(cli, client, "redrive_letters", name, chosen, send)
            _say_gone(cli, found, result)
        else:  # without a letter nothing is written down
            result = LettersResult((), (), (), ())
    done = "would be sent back" if dry_run else "sent back"
    _tell(cli, {"queue": name, "dry_run": dry_run}, result, f"{done} to {name}")


@command(app)
def drop(cli: CliContext, name: QueueName, chosen: Chosen, *, yes: YesLater = False) -> None:
    """Delete dead letters for good: those of these ids, of a task or reason, or all."""
    chosen.check()
    check_prompt(cli, yes=yes)
    with _choosing(cli, name, chosen) as (client, dead, which):
        with cli.status("Looking…"):
            result = dead.drop(**which, dry_run=True)
        found = [*result.done, *result.held]
        if result.done:  # otherwise nobody is asked, and nothing is written down
            confirm(cli, f"Delete {counted(len(result.done), 'dead letter')} of {name} for good?", yes=yes)
            drop = partial(dead._drop_those_left, found)  # noqa: SLF001 - a public drop refuses letters that are gone
            with going_on(cli, chosen.left_out()), cli.status("Dropping…"):
                result = _audited(cli, client, "drop_letters", name, chosen, drop)
    _say_gone(cli, found, result)
    _tell(cli, {"queue": name}, result, f"of {name} dropped")


def _say_gone(cli: CliContext, found: Sequence[MessageId], result: LettersResult) -> None:
    """Say how many of the letters that were found had gone before they were acted on."""
    gone = len(found) - len(result.done) - len(result.held) - len(result.failed)
    if gone > 0:
        cli.remark(f"{counted(gone, 'dead letter')} had gone meanwhile.")


@contextmanager
def _choosing(
    cli: CliContext, name: str, chosen: Chosen
) -> Iterator[tuple[Client, DeadLetters, dict[str, Any]]]:
    """Yield a client, the dead letters of a queue, and the options of `redrive` and `drop` that choose."""
    with open_client(cli) as client:
        queue = find_queue(client, name)
        with cli.status("Looking…"):
            named = letter_ids(queue.dead_letters, chosen.ids) if chosen.ids else None
        some = {"task": chosen.task, "reason": chosen.reason, "kind": chosen.kind}
        yield client, queue.dead_letters, {"letter_ids": named, "everything": chosen.all_, **some}
        say_left_out(cli, client, "messages", "message_keys")


def _audited(
    cli: CliContext, client: Client, what: str, name: str, chosen: Chosen, act: Callable[[], LettersResult]
) -> LettersResult:
    """Act on letters, and write down who did it and what became of them."""
    from cqueue.audit import of_letters  # noqa: PLC0415 - not needed for --help

    with audited(cli, client, what, queue=name, **chosen.about()) as more:
        result = act()
        more.update(of_letters(result))
    return result


def _tell(cli: CliContext, about: dict[str, Any], result: LettersResult, done: str) -> None:
    """Say what became of the letters; leave with the exit code of the worst error."""
    failed = [{"id": id_, **error_fields(error)} for id_, error in result.failed]
    value = {**about, "done": result.done, "sent": result.sent, "held": result.held, "failed": failed}
    cli.emit(value, f"{counted(len(result.done), 'dead letter')} {done}.")
    if not (result.done or result.held or failed):
        cli.remark(f"No letter fits. `cqueue dead list {about['queue']}` shows the tasks and reasons of all.")
    reasons = [(id_, "a consumer of the dead-letter queue holds it, so it stays") for id_ in result.held]
    reasons += [(id_, f"{type(error).__name__}: {error}") for id_, error in result.failed]
    for text in grouped(reasons):
        cli.remark(text)
    if result.failed:
        raise typer.Exit(exit_code(worst(error for _, error in result.failed)))
    if result.held:
        raise typer.Exit(ExitCode.NOT_DONE)


_COLUMNS: Mapping[str, Callable[[DeadLetter], Any]] = {
    "id": lambda letter: short(letter.id),
    "died": attrgetter("died_at"),
    "task": attrgetter("task"),
    "attempts": attrgetter("attempts"),
    "reason": attrgetter("reason"),
}
_GROUP_COLUMNS: Mapping[str, Callable[[LetterGroup], Any]] = {
    "letters": attrgetter("count"),
    "task": attrgetter("task"),
    "last died": attrgetter("last"),
    "redriven": attrgetter("redriven"),
    "example": lambda group: short(group.example),
    "reason": attrgetter("reason"),
}


def letter_fields(letter: DeadLetter) -> dict[str, Any]:
    """Return what --json shows of a letter in a list."""
    return {
        "id": letter.id,
        "original_id": letter.original_id,
        "state": "dead",
        "task": letter.task,
        "key": letter.key,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "died_at": letter.died_at,
        "redrives": letter.redrives,
        "holder": letter.holder,
        "fence": letter.fence,
        "holder_lost": letter.holder_lost,
        "held": letter.held,
        "priority": letter.priority,
        "headers": dict(letter.headers),
        "size": letter.size,
    }


def print_letter(cli: CliContext, letter: DeadLetter, *, queue: str) -> None:
    """Print all that is known of a letter, with its traceback and its body."""
    text, encoding, trouble = _body(letter)
    more = {"traceback": letter.traceback, "codec": letter.codec, "body": text, "encoding": encoding}
    held = ", held by a consumer of the dead-letter queue" if letter.held else ""
    told = {
        "id": f"{letter.id} ({short(letter.id)})",
        "state": f"dead{held}",
        "headers": ", ".join(header_pairs(letter.headers)),
        "holder": ABANDONED if letter.holder_lost else letter.holder,
        "fence": None if letter.fence is None else str(letter.fence),
        "redrives": letter.redrives or None,
        "body": trouble or text,
        **dict.fromkeys(("held", "holder_lost", "size", "codec", "encoding")),
    }
    emit_one(cli, {"queue": queue, **letter_fields(letter), **more}, told)


def _body(letter: DeadLetter) -> tuple[str | None, str | None, str | None]:
    """Return the body as text and its encoding, or why there is none: the rest is shown in any case."""
    if letter.body_lost:
        return None, None, "lost: no replica had it"
    try:
        return *body_text(letter.body), None
    except NotDone as exc:
        return None, None, str(exc)
