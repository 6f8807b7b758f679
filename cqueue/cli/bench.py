"""`cqueue bench`: how fast it is here, beside what the bare driver does."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from cqueue.bench.options import Options, Rows
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.interrupts import held_back
from cqueue.cli.options import directory, number
from cqueue.cli.table import print_sheet, print_table
from cqueue.cli.values import parse_pairs

app = typer.Typer(no_args_is_help=True)

Messages = Annotated[int, "How many messages."]
Size = Annotated[int, "Bytes of a body."]
Shards = Annotated[int, "Concurrency shards."]
Rounds = Annotated[int, number("Pairs measured after one to warm up.", 1, 100)]

ROWS, LOAD = Rows(), Options()
BACKLOG, SHARED_BACKLOG, BOTH_WAYS = (Options(count, batch=500) for count in (20_000, 100_000, 200_000))

MOST_A_SECOND = 1000
VAR_TMP = Path("/var/tmp")  # nosec B108  # noqa: S108 - only a parent
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
        bool,
        typer.Option("--one-core", help="Keep the client to one core, the last that it may use."),
    ] = False,
) -> None:
    """Measure throughput, latency and idle cost."""
    if one_core:
        from cqueue.runtime import process  # noqa: PLC0415 - keeps `cqueue --help` quick

        process.keep_to_one_core(-1)


@command(app)
def floor(cli: CliContext, rows: Rows = ROWS) -> None:
    """The bare driver doing the same row work, without a queue."""
    _run(cli, "throughput.floor", rows)


@command(app)
def burndown(
    cli: CliContext,
    load: Options = LOAD,
    *,
    pipelined: Annotated[
        bool, "Claim the next four batches while the acks of the last ones are stored."
    ] = False,
    ahead: Annotated[bool, "Send two batches at a time."] = False,
    verify: Annotated[bool, "Record every call, and check the history."] = False,
) -> None:
    """Send all messages, then drain them, until every ack is stored."""
    if verify and (pipelined or ahead):
        raise typer.BadParameter(
            "takes no --pipelined and no --ahead: a history records sends and acks that are waited for",
            param_hint="--verify",
        )
    if not verify:
        _run(cli, "throughput.burndown", load, pipelined=pipelined, ahead=ahead, calm=True)
        return
    with TemporaryDirectory(prefix="cqueue-bench-") as directory:
        found = _run(cli, "throughput.burndown", load, history=Path(directory) / "history")
        if not found["verified"]:
            raise typer.Exit(ExitCode.CHECK_FAILED)


@command(app)
def ratio(cli: CliContext, load: Options = LOAD, *, rounds: Rounds = 3) -> None:
    """Floor and burndown in turn: medians, and the median of burndown / floor."""
    _run(cli, "throughput.ratio", load, rounds=rounds)


@command(app)
def dispatch(
    cli: CliContext,
    load: Options = LOAD,
    *,
    threads: Annotated[int, number("Threads of the dispatcher.", 1, 1000)] = 8,
    rounds: Rounds = 3,
) -> None:
    """Burndown and a dispatcher whose handler does nothing in turn: medians, and dispatcher / burndown."""
    _run(cli, "dispatch.dispatch", load, rounds=rounds, threads=threads)


@command(app)
def sends(
    cli: CliContext,
    *,
    messages: Messages = 8000,
    size: Size = LOAD.size,
    shards: Shards = LOAD.shards,
    threads: Annotated[int, number("Threads that send.", 1, 100)] = 16,
    rounds: Rounds = 3,
) -> None:
    """Single sends from many threads: bare inserts, `send`, and `send` of a queue that lingers, in turn."""
    load = Options(messages, size, batch=1, receive=1, shards=shards)
    _run(cli, "sends.sends", load, rounds=rounds, threads=threads)


@command(app)
def backlog(
    cli: CliContext,
    load: Options = BACKLOG,
    *,
    large: Annotated[int, number("How many messages beside that.", 1)] = 2_000_000,
    rounds: Rounds = 3,
) -> None:
    """Drain a small and a large backlog in turn: both rates, and large / small."""
    _run(cli, "growth.backlog", load, large=large, rounds=rounds)


@command(app)
def consumers(cli: CliContext, load: Options = SHARED_BACKLOG, *, rounds: Rounds = 3) -> None:
    """Drain a backlog with two and with ten processes in turn: both rates, and ten / two."""
    _run(cli, "growth.consumers", load, rounds=rounds)


@command(app)
def cost(cli: CliContext, load: Options = LOAD) -> None:
    """Conditional mutations, statements and tombstones of three ways to drain a backlog."""
    _run(cli, "cost.cost", load)


@command(app)
def processes(cli: CliContext, load: Options = BOTH_WAYS, *, rounds: Rounds = 3) -> None:
    """Two producer and two consumer processes at once, and four and four: both rates, and four / two."""
    _run(cli, "growth.processes", load, rounds=rounds)


@command(app)
def latency(
    cli: CliContext,
    *,
    size: Size = LOAD.size,
    shards: Shards = LOAD.shards,
    rate: Annotated[str, "N,…", "Messages a second, one rate after the other; 1 to 1000."] = "",
    seconds: Annotated[float | None, number("How long each rate takes.", 1, 3600)] = None,
    dispatchers: Annotated[int, number("Processes that handle messages.", 1, 100)] = 1,
    one_process: Annotated[bool, "Let this process handle the messages as well."] = False,
    followers: Annotated[bool, "Measure a log's follower and subscription instead."] = False,
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
    load = Options(1, size, batch=1, receive=1, shards=shards)
    _run(cli, "followers.followers" if followers else "latency.latency", load, asked=asked)


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
    *,
    messages: Annotated[int, "How many records."] = 100_000,
    size: Size = LOAD.size,
    batch: Annotated[int, "Records an append."] = 500,
    partitions: Annotated[int, number("Partitions of the log.", 1, 1000)] = 16,
    threads: Annotated[int, number("Threads that append.", 1, 100)] = 4,
) -> None:
    """Append to a log, and scan it as records and to Arrow; with the CPU time of each record."""
    load = Options(messages, size, batch=batch, receive=1, shards=1)
    _run(cli, "log.log", load, partitions=partitions, threads=threads)


@command(app)
def spool(
    cli: CliContext,
    *,
    messages: Annotated[int, number("How many messages of a round.", 1)] = 100_000,
    size: Annotated[int, number("Bytes of a message.", 0, 1 << 20)] = 100,
    rounds: Annotated[int, number("Rounds; the medians count.", 1, 100)] = 5,
    parent: Annotated[Path, directory("On the disk to measure.", "--dir")] = VAR_TMP,
) -> None:
    """Append to a spool, to SQLite and to persist-queue, at each durability. Needs no Cassandra."""
    from cqueue.bench import spool as module  # noqa: PLC0415 - as above

    asked = module.Asked(messages=messages, size=size, rounds=rounds, directory=parent)
    with held_back(), cli.bar("measuring") as progress:
        result = module.spool(asked, progress)
    cli.emit(result, lambda: _print(cli, result))


@command(app)
def spark(
    cli: CliContext,
    *,
    messages: Annotated[int, "How many rows."] = 200_000,
    size: Size = LOAD.size,
    shards: Shards = LOAD.shards,
    master: Annotated[str | None, "URL", "Where Spark runs."] = None,
    conf: Annotated[list[str] | None, "NAME=VALUE", "A setting of Spark; may be repeated."] = None,
    connector: Annotated[str | None, "COORDINATES", "The connector to compare with, or none."] = None,
) -> None:
    """Write to a queue and a log through Spark, and read both; beside the Spark Cassandra Connector."""
    from cqueue.bench import spark as module  # noqa: PLC0415 - as above

    compared = {None: module.CONNECTOR, "none": ""}.get(connector, connector or "")
    settings = parse_pairs(conf, "--conf")
    load = Options(messages, size, batch=1, receive=1, shards=shards)
    _run(cli, "spark.spark", load, url=cli.url, master=master, conf=settings, connector=compared)


@command(app, "warm-up")
def warm_up(
    cli: CliContext,
    *,
    seconds: Annotated[float, number("For how long.", 1, 3600)] = 60,
    size: Size = LOAD.size,
) -> None:
    """Send and drain for a while, so that the server is at its full speed for what is measured next."""
    _run(cli, "warm_up.warm_up", Rows(1, size, batch=1, receive=1), seconds=seconds)


@command(app)
def idle(
    cli: CliContext,
    *,
    shards: Shards = LOAD.shards,
    queues: Annotated[int, number("More than one: one dispatcher of all of them.", 1, 10_000)] = 1,
    seconds: Annotated[int, number("How long nothing is sent.", 1, 86_400)] = 10,
) -> None:
    """Statements a second of a consumer and a dispatcher that have nothing to do, with notify on and off.

    Also the time from the next send, by another process, to its delivery. With --queues, measure one
    dispatcher of all of them.
    """
    load = Options(1, 12, batch=1, receive=10, shards=shards)
    if queues == 1:
        _run(cli, "idle.idle", load, seconds=seconds)
    else:
        _run(cli, "idle.idle_queues", load, queues=queues, seconds=seconds)


def _run(cli: CliContext, measure: str, load: Rows, **more: Any) -> dict[str, Any]:
    """Measure on the cluster of the command, and print the result.

    measure: MODULE.FUNCTION of `cqueue.bench`, imported here because the driver takes long to import.
    """
    from cqueue.bench.setup import open_bench  # noqa: PLC0415 - the driver takes long to import
    from cqueue.runtime import process  # noqa: PLC0415 - as above

    process.settle_garbage()  # as the daemon does
    module, _, name = measure.partition(".")
    work: Callable[..., dict[str, Any]] = getattr(importlib.import_module(f"cqueue.bench.{module}"), name)
    with held_back(), open_bench(cli.settings()) as bench, cli.bar("measuring") as progress:
        result = work(bench, load, progress=progress, **more)
    cli.emit(result, lambda: _print(cli, result))
    return result


def _print(cli: CliContext, result: dict[str, Any]) -> None:
    figures: dict[str, Any] = {}
    for key, value in result.items():
        if key == "rows":
            columns = {name: key for name, key in _COLUMNS.items() if any(key in row for row in value)}
            cells = [[row.get(key, "") for key in columns.values()] for row in value]
            print_table(cli, list(columns), cells, spare=["messages"])
        elif isinstance(value, dict):
            figures.update({f"{key}.{inner}": one for inner, one in value.items()})
        else:
            figures[key] = value
    print_sheet(cli, figures)
