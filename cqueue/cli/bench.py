"""`cqueue bench`: how fast it is here, beside what the bare driver does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.render import figure
from cqueue.cli.table import print_sheet, print_table

app = typer.Typer(no_args_is_help=True)

Messages = Annotated[int, typer.Option(help="How many messages.")]
Size = Annotated[int, typer.Option(help="Bytes of a body.")]
Batch = Annotated[int, typer.Option(help="Messages a send.")]
Receive = Annotated[int, typer.Option(help="Messages a receive.")]
Shards = Annotated[int, typer.Option(help="Concurrency shards.")]
Threads = Annotated[int, typer.Option(min=1, max=1000, help="Threads of the dispatcher.")]
Rounds = Annotated[int, typer.Option(min=1, max=100, help="Pairs measured after one to warm up.")]
Pipelined = Annotated[
    bool,
    typer.Option(
        "--pipelined", help="Claim the next four batches while the acks of the last ones are stored."
    ),
]
SendAhead = Annotated[bool, typer.Option("--ahead", help="Send two batches at a time.")]
Verify = Annotated[bool, typer.Option("--verify", help="Record every call, and check the history.")]

SIZE, SHARDS = 200, 4


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages of a benchmark, and the batches in which they are sent and received."""

    messages: Messages = 20_000
    size: Size = SIZE
    batch: Batch = 100
    receive: Receive = 500


@dataclass(frozen=True, slots=True)
class Load(Rows):
    """Messages of a benchmark, and the shards of their queue."""

    shards: Shards = SHARDS


ROWS, LOAD = Rows(), Load()
BACKLOG, SHARED_BACKLOG, BOTH_WAYS = (Load(messages=count, batch=500) for count in (20_000, 100_000, 200_000))

MOST_A_SECOND = 1000
_COLUMNS = {
    "to": "to",
    "who": "who",
    "notify": "notify",
    "wide rows": "wide_rows",
    "statements/s": "statements_per_s",
    "first ms": "first_delivery_ms",
    "rate/s": "rate_per_s",
    "messages": "received",
    "p50 ms": "p50_ms",
    "p99 ms": "p99_ms",
    "floor ms": "floor_ms",
    "p50/floor": "p50_to_floor",
    "p99/floor": "p99_to_floor",
}


@app.callback()
def bench(
    *,
    one_core: Annotated[
        bool, typer.Option("--one-core", help="Keep the client to one core, the last that it may use.")
    ] = False,
) -> None:
    """Measure throughput, latency and idle cost."""
    if one_core:
        from cqueue.runtime import cores  # noqa: PLC0415 - keeps `cqueue --help` quick

        cores.keep_to_one(-1)


@command(app)
def floor(cli: CliContext, rows: Rows = ROWS) -> None:
    """The bare driver doing the same row work, without a queue."""
    from cqueue.bench import throughput  # noqa: PLC0415 - the driver takes long to import

    _run(cli, throughput.floor, **asdict(rows))


@command(app)
def burndown(
    cli: CliContext,
    load: Load = LOAD,
    *,
    pipelined: Pipelined = False,
    ahead: SendAhead = False,
    verify: Verify = False,
) -> None:
    """Send all messages, then drain them, until every ack is stored."""
    from cqueue.bench import throughput  # noqa: PLC0415 - as above

    if verify and (pipelined or ahead):
        raise typer.BadParameter(
            "takes no --pipelined and no --ahead: a history records sends and acks that are waited for",
            param_hint="--verify",
        )
    if not verify:
        _run(cli, partial(throughput.calm_burndown, pipelined=pipelined, ahead=ahead), **asdict(load))
        return
    with TemporaryDirectory(prefix="cqueue-bench-") as directory:
        measure = partial(throughput.burndown, history=Path(directory) / "history")
        if not _run(cli, measure, **asdict(load))["verified"]:
            raise typer.Exit(ExitCode.CHECK_FAILED)


@command(app)
def ratio(cli: CliContext, load: Load = LOAD, rounds: Rounds = 3) -> None:
    """Floor and burndown in turn: medians, and the median of burndown / floor."""
    from cqueue.bench import throughput  # noqa: PLC0415 - as above

    _run(cli, partial(throughput.ratio, rounds=rounds), **asdict(load))


@command(app)
def dispatch(cli: CliContext, load: Load = LOAD, threads: Threads = 8, rounds: Rounds = 3) -> None:
    """Burndown and a dispatcher whose handler does nothing in turn: medians, and dispatcher / burndown."""
    from cqueue.bench import dispatch as module  # noqa: PLC0415 - as above

    _run(cli, partial(module.dispatch, rounds=rounds, threads=threads), **asdict(load))


@command(app)
def sends(
    cli: CliContext,
    messages: Messages = 8000,
    size: Size = SIZE,
    shards: Shards = SHARDS,
    threads: Annotated[int, typer.Option(min=1, max=100, help="Threads that send.")] = 16,
    rounds: Rounds = 3,
) -> None:
    """Single sends from many threads: bare inserts, `send`, and `send` of a queue that lingers, in turn."""
    from cqueue.bench import sends as module  # noqa: PLC0415 - as above

    measure = partial(module.sends, rounds=rounds, threads=threads)
    _run(cli, measure, messages=messages, size=size, batch=1, receive=1, shards=shards)


@command(app)
def backlog(
    cli: CliContext,
    messages: Messages = BACKLOG.messages,
    large: Annotated[int, typer.Option(min=1, help="How many messages beside that.")] = 2_000_000,
    size: Size = SIZE,
    batch: Batch = BACKLOG.batch,
    receive: Receive = BACKLOG.receive,
    shards: Shards = SHARDS,
    rounds: Rounds = 3,
) -> None:
    """Drain a small and a large backlog in turn: both rates, and large / small."""
    from cqueue.bench import growth  # noqa: PLC0415 - as above

    measure = partial(growth.backlog, large=large, rounds=rounds)
    _run(cli, measure, messages=messages, size=size, batch=batch, receive=receive, shards=shards)


@command(app)
def consumers(cli: CliContext, load: Load = SHARED_BACKLOG, rounds: Rounds = 3) -> None:
    """Drain a backlog with two and with ten processes in turn: both rates, and ten / two."""
    from cqueue.bench import growth  # noqa: PLC0415 - as above

    _run(cli, partial(growth.consumers, rounds=rounds), **asdict(load))


@command(app)
def cost(cli: CliContext, load: Load = LOAD) -> None:
    """Conditional mutations, statements and tombstones of three ways to drain a backlog."""
    from cqueue.bench import cost as module  # noqa: PLC0415 - as above

    _run(cli, module.cost, **asdict(load))


@command(app)
def processes(cli: CliContext, load: Load = BOTH_WAYS, rounds: Rounds = 3) -> None:
    """Two producer and two consumer processes at once, and four and four: both rates, and four / two."""
    from cqueue.bench import growth  # noqa: PLC0415 - as above

    _run(cli, partial(growth.processes, rounds=rounds), **asdict(load))


@command(app)
def latency(
    cli: CliContext,
    size: Size = SIZE,
    shards: Shards = SHARDS,
    *,
    rate: Annotated[
        str, typer.Option(metavar="N,…", help="Messages a second, one rate after the other; 1 to 1000.")
    ] = "",
    seconds: Annotated[float | None, typer.Option(min=1, max=3600, help="How long each rate takes.")] = None,
    dispatchers: Annotated[int, typer.Option(min=1, max=100, help="Processes that handle messages.")] = 1,
    one_process: Annotated[
        bool, typer.Option("--one-process", help="Let this process handle the messages as well.")
    ] = False,
    followers: Annotated[
        bool, typer.Option("--followers", help="Measure a log's follower and subscription instead.")
    ] = False,
) -> None:
    """From send to handler in another process, in ms, beside a bare insert and a conditional mutation."""
    from cqueue.bench import followers as of_logs  # noqa: PLC0415 - as above
    from cqueue.bench import latency as of_queues  # noqa: PLC0415 - as above

    if followers and (one_process or dispatchers > 1):
        raise typer.BadParameter(
            "takes no --dispatchers and no --one-process: a follower and a subscription listen to a log",
            param_hint="--followers",
        )
    asked = of_queues.Asked(
        rates=_rates(rate) or (of_logs.RATES if followers else of_queues.RATES),
        seconds=seconds,
        dispatchers=dispatchers,
        one_process=one_process,
    )
    measure = partial(of_logs.followers if followers else of_queues.latency, asked=asked)
    _run(cli, measure, messages=1, size=size, batch=1, receive=1, shards=shards)


def _rates(text: str) -> list[int]:
    """Return the numbers of `--rate`."""
    rates = [int(word) if word.isascii() and word.isdigit() else 0 for word in text.split(",") if text]
    if not all(1 <= each <= MOST_A_SECOND for each in rates):
        raise typer.BadParameter(
            f"{text!r} is no list of whole numbers from 1 to {MOST_A_SECOND}, such as 1,20,200",
            param_hint="--rate",
        )
    return rates


@command(app)
def log(
    cli: CliContext,
    messages: Annotated[int, typer.Option(help="How many records.")] = 100_000,
    size: Size = SIZE,
    batch: Annotated[int, typer.Option(help="Records an append.")] = 500,
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="Partitions of the log.")] = 16,
    threads: Annotated[int, typer.Option(min=1, max=100, help="Threads that append.")] = 4,
) -> None:
    """Append to a log, and scan it as records and to Arrow; with the CPU time of each record."""
    from cqueue.bench import log as module  # noqa: PLC0415 - as above

    measure = partial(module.log, partitions=partitions, threads=threads)
    _run(cli, measure, messages=messages, size=size, batch=batch, receive=1, shards=1)


@command(app)
def spool(
    cli: CliContext,
    messages: Annotated[int, typer.Option(min=1, help="How many messages of a round.")] = 100_000,
    size: Annotated[int, typer.Option(min=0, max=1 << 20, help="Bytes of a message.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds; the medians count.")] = 5,
    directory: Annotated[
        Path,
        typer.Option("--dir", metavar="DIR", exists=True, file_okay=False, help="On the disk to measure."),
    ] = Path("/var/tmp"),  # noqa: S108 - only a parent
) -> None:
    """Append to a spool, to SQLite and to persist-queue, at each durability. Needs no Cassandra."""
    from cqueue.bench import spool as module  # noqa: PLC0415 - as above

    asked = module.Asked(messages=messages, size=size, rounds=rounds, directory=directory)
    with cli.bar("measuring") as progress:
        result = module.spool(asked, progress)
    cli.emit(result, lambda: _print(cli, result))


@command(app)
def spark(
    cli: CliContext,
    messages: Annotated[int, typer.Option(help="How many rows.")] = 200_000,
    size: Size = SIZE,
    shards: Shards = SHARDS,
    *,
    master: Annotated[str | None, typer.Option(metavar="URL", help="Where Spark runs.")] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    connector: Annotated[
        str | None, typer.Option(metavar="COORDINATES", help="The connector to compare with, or none.")
    ] = None,
) -> None:
    """Write to a queue and a log through Spark, and read both; beside the Spark Cassandra Connector."""
    from cqueue.bench import spark as module  # noqa: PLC0415 - as above

    compared = {None: module.CONNECTOR, "none": ""}.get(connector, connector or "")
    settings = dict(pair.partition("=")[::2] for pair in conf or [])
    measure = partial(module.spark, url=cli.url, master=master, conf=settings, connector=compared)
    _run(cli, measure, messages=messages, size=size, batch=1, receive=1, shards=shards)


@command(app, "warm-up")
def warm_up(
    cli: CliContext,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="For how long.")] = 60,
    size: Size = SIZE,
) -> None:
    """Send and drain for a while, so that the server is at its full speed for what is measured next."""
    from cqueue.bench import warm_up as module  # noqa: PLC0415 - as above

    _run(cli, partial(module.warm_up, seconds=seconds), messages=1, size=size, batch=1, receive=1)


@command(app)
def idle(
    cli: CliContext,
    shards: Shards = SHARDS,
    queues: Annotated[
        int, typer.Option(min=1, max=10_000, help="More than one: one dispatcher of all of them.")
    ] = 1,
    seconds: Annotated[int, typer.Option(min=1, max=86_400, help="How long nothing is sent.")] = 10,
) -> None:
    """Statements a second of a consumer and a dispatcher that have nothing to do, with notify on and off.

    Also the time from the next send, by another process, to its delivery. With --queues, measure one
    dispatcher of all of them.
    """
    from cqueue.bench import idle as module  # noqa: PLC0415 - as above

    measure = (
        partial(module.idle, seconds=seconds)
        if queues == 1
        else partial(module.idle_queues, queues=queues, seconds=seconds)
    )
    _run(cli, measure, messages=1, size=12, batch=1, receive=10, shards=shards)


def _run(cli: CliContext, measure: Callable[..., dict[str, Any]], **options: int) -> dict[str, Any]:
    """Measure on the cluster of the command, and print the result."""
    from cqueue.bench.setup import Options, open_bench  # noqa: PLC0415 - as above
    from cqueue.runtime import garbage_collection  # noqa: PLC0415 - as above

    garbage_collection.settle()  # as the daemon does
    checked = Options(**options)
    with open_bench(cli.settings()) as bench, cli.bar("measuring") as progress:
        result = measure(bench, checked, progress=progress)
    cli.emit(result, lambda: _print(cli, result))
    return result


def _print(cli: CliContext, result: dict[str, Any]) -> None:
    figures: dict[str, str] = {}
    for key, value in result.items():
        if key == "rows":
            _print_rows(cli, value)
        elif isinstance(value, dict):
            figures.update({f"{key}.{inner}": f"{number:,}" for inner, number in value.items()})
        else:
            figures[key] = figure(value)
    print_sheet(cli, figures)


def _print_rows(cli: CliContext, rows: list[dict[str, Any]]) -> None:
    columns = {name: key for name, key in _COLUMNS.items() if any(key in row for row in rows)}
    cells = [[figure(row.get(key, "")) for key in columns.values()] for row in rows]
    print_table(cli, list(columns), cells, right=list(columns)[1:], spare=["messages"])
