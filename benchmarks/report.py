"""All benchmarks one after the other on one cluster, and a page with their figures and plots.

    python -m benchmarks.report --page docs/reference/performance.md --plots docs/images

on the cluster of CQUEUE_URL, in a keyspace that has the schema; nothing else should run on the machine. The
results go to `--json` as they come, so that what was measured is there if a later benchmark fails. With
`--from` the page is made again from such a file, and nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

Result = dict[str, Any]
PLOTTED: Final = 200
"""Messages a second of the histogram."""


class Wanted(NamedTuple):
    """One benchmark: its name in the results, and the command behind `cqueue bench`.

    one_core: whether the client is kept to one core. Where several processes are the clients they are not.
    module: what to run instead of `cqueue bench`.
    """

    name: str
    command: tuple[str, ...]
    one_core: bool = True
    module: str = ""


def wanted(rounds: int, large: int) -> list[Wanted]:
    """Return the benchmarks to run; the larger the bodies, the fewer messages."""
    often = ("--rounds", str(rounds))
    return [
        Wanted("warm-up", ("warm-up", "--seconds", "120")),
        *(Wanted(f"latency {turn}", ("latency",), one_core=False) for turn in (1, 2, 3)),
        Wanted("latency, three dispatchers", ("latency", "--dispatchers", "3"), one_core=False),
        Wanted("latency, one process", ("latency", "--one-process", "--rate", "200")),
        Wanted("followers", ("latency", "--followers"), one_core=False),
        Wanted("ratio", ("ratio", *often, "--messages", "100000")),
        *(
            Wanted(f"ratio {size} B", ("ratio", *often, "--size", str(size), "--messages", str(count)))
            for size, count in ((1_000, 20_000), (10_000, 20_000), (100_000, 2_000))
        ),
        Wanted("dispatch", ("dispatch", *often, "--messages", "200000")),
        Wanted("dispatch, all cores", ("dispatch", *often, "--messages", "200000"), one_core=False),
        Wanted("sends", ("sends", *often)),
        Wanted("sends, one thread", ("sends", "--threads", "1", *often)),
        Wanted("consumers", ("consumers", *often, "--messages", "600000"), one_core=False),
        Wanted("processes", ("processes", *often), one_core=False),
        Wanted("log", ("log", "--messages", "200000")),
        Wanted("idle", ("idle",)),
        Wanted("idle queues", ("idle", "--queues", "1000", "--seconds", "60")),
        Wanted("cost", ("cost", "--messages", "100000")),
        Wanted("cost, sent one by one", ("cost", "--batch", "1")),
        Wanted("bytes written", ("--messages", "100000"), module="benchmarks.bytes_written"),
        Wanted("backlog small", ("backlog", "--large", str(large // 10), *often)),
        Wanted("backlog", ("backlog", "--large", str(large), *often)),
    ]


def main() -> int:
    """Measure, and write page and plots."""
    options = _options()
    stored = Path(options.json)
    if options.from_file:
        found: dict[str, Result] = json.loads(Path(options.from_file).read_text())
    else:
        found = _measure(wanted(options.rounds, options.large), stored, options.only)
    if options.page:
        Path(options.page).write_text(page(found), encoding="utf-8")
    if options.plots:
        plot(found, Path(options.plots))
    return 0 if all("error" not in result for result in found.values()) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.report", description="Run all benchmarks.")
    parser.add_argument("--json", default="benchmarks/results.json", help="where results go")
    parser.add_argument("--from", dest="from_file", help="results to use instead of measuring")
    parser.add_argument("--page", help="the page to write")
    parser.add_argument("--plots", help="the directory for plots")
    parser.add_argument("--rounds", type=int, default=5, help="of each ratio")
    parser.add_argument("--large", type=int, default=2_000_000, help="messages of the large backlog")
    parser.add_argument("--only", default="", help="names of some, with commas")
    return parser.parse_args()


def _measure(benches: list[Wanted], stored: Path, only: str) -> dict[str, Result]:
    found: dict[str, Result] = json.loads(stored.read_text()) if only and stored.exists() else {}
    for bench in benches:
        if only and bench.name not in only.split(","):
            continue
        print(f"{time.strftime('%H:%M:%S')} {bench.name}", file=sys.stderr, flush=True)
        found[bench.name] = {**_run(bench), "at": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg()[0]}
        stored.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def _run(bench: Wanted) -> Result:
    one_core = ("--one-core",) if bench.one_core else ()
    ours = ["cqueue", "bench", *one_core, *bench.command, "--json"]
    command = [sys.executable, "-m", *([bench.module, *bench.command] if bench.module else ours)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message"}
    result: Result = json.loads(done.stdout)
    return result


# ── the page ──


def page(found: dict[str, Result]) -> str:
    """The figures as a page of the documentation."""
    some = next((result for result in found.values() if "version" in result), {})
    conditions = (
        f"{some.get('at', '')[:10]}, cqueue {some.get('version')}, Cassandra {some.get('cassandra')}, "
        f"commit log `{some.get('commitlog_sync')}`, {some.get('nodes')} node(s), "
        f"replication factor {some.get('replication_factor')}, consistency {some.get('consistency')}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores."
    )
    lines = [
        "# Performance",
        "",
        "Written by `make performance`; how it is measured stands in `benchmarks/README.md`.",
        "Client and server share the machine: a figure says most as a ratio to another one of the same run.",
        "*Cores* is how many the client could use; with 1 it was kept to it (`cqueue bench --one-core`).",
        "*Taken by others*: how much of the CPU time that this machine wanted went to others of its host.",
        "*When*: some may be of an earlier run, and compare with others of that run only.",
        "",
        conditions,
        "",
        "| what | figure | in detail | cores | load of the machine | taken by others | when |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_line(name, result) for name, result in found.items() if name != "warm-up"]
    lines += [
        "",
        "![Messages drained a second over the size of the backlog](../images/drain-over-backlog.svg)",
        "",
        "![Milliseconds from send to handler](../images/latency.svg)",
        "",
    ]
    return "\n".join(lines)


def _line(name: str, result: Result) -> str:
    if "error" in result:
        return f"| {name} | failed | {result['error']} | | {result.get('load', 0):.1f} | | {result['at']} |"
    figure, detail = FIGURES[result["bench"]](result)
    rounds = " ".join(f"{ratio:.2f}" for ratio in result.get("ratios", ()))
    detail += f"; rounds: {rounds}" if rounds else ""
    stolen = result.get("stolen_percent")  # older results have none, nor has every system
    taken = "" if stolen is None else f"{stolen:.1f} %"
    under = f"{result['client_cores']} | {result['load']:.1f} | {taken} | {result['at']}"
    return f"| {name} | {figure} | {detail} | {under} |"


def _ratio(result: Result) -> tuple[str, str]:
    floor, ours = result["floor"], result["burndown"]
    return f"{result['ratio']:.2f} of the bare driver", (
        f"sent {ours['sent_per_s']:,.0f}/s of {floor['sent_per_s']:,.0f}/s, "
        f"drained {ours['drained_per_s']:,.0f}/s of {floor['drained_per_s']:,.0f}/s"
    )


def _dispatch(result: Result) -> tuple[str, str]:
    ours, bare = result["dispatcher"]["drained_per_s"], result["burndown"]["drained_per_s"]
    return f"{result['ratio']:.2f} of burndown", f"{ours:,.0f}/s of {bare:,.0f}/s"


def _sends(result: Result) -> tuple[str, str]:
    each = ", ".join(f"{name} {result[name]['per_s']:,.0f}/s" for name in ("floor", "send", "linger"))
    figure = f"{result['ratio']:.2f} of bare inserts; with linger {result['linger_ratio']:.2f}"
    return figure, f"{each}, {result['threads']} threads"


def _growth(result: Result) -> tuple[str, str]:
    rates = [f"{key.replace('_', ' ')}: {value['per_s']:,.0f}/s" for key, value in _pairs(result)]
    return f"{result['ratio']:.2f}", ", ".join(rates)


def _latency(result: Result) -> tuple[str, str]:
    figures = [
        f"{row['to']}, {row['rate_per_s']}/s: p50 {row['p50_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms"
        for row in result["rows"]
    ]
    floors = [
        f"{row['rate_per_s']}/s: {row['p50_to_floor']:.2f} and {row['p99_to_floor']:.2f} of the floor "
        f"{row['floor_ms']:.1f} ms, sends p50 {row['send_p50_ms']:.1f} ms, p99 {row['send_p99_ms']:.1f} ms"
        for row in result["rows"]
        if "floor_ms" in row
    ]
    return "; ".join(figures), "; ".join(floors)


def _idle(result: Result) -> tuple[str, str]:
    if "rows" not in result:
        return (
            f"{result['statements_per_s']:.1f} statements/s",
            f"{result['queues']:,} queues",
        )
    figures = [
        f"{row['who']}, notify={row['notify']}, {row['wide_rows']} wide rows: "
        f"{row['statements_per_s']:.1f} statements/s, the next message in {row['first_delivery_ms']:,.0f} ms"
        for row in result["rows"]
    ]
    return figures[0], "; ".join(figures[1:])


def _cost(result: Result) -> tuple[str, str]:
    names = ("one_at_a_time", "ahead", "dispatcher")
    each = ", ".join(f"{result[name]['conditional_per_1000']:.1f}" for name in names)
    met = result["tombstones_per_read"]
    return f"{each} conditional mutations per 1,000 messages", (
        "one batch at a time, four claimed ahead, a dispatcher; reads that met more than 1,000 tombstones: "
        f"{sum(result[name]['reads_over_1000_tombstones'] for name in names)} (the most in Cassandra's "
        f"histogram: {met['max']:,}, before {met['before']:,})"
    )


def _bytes_written(result: Result) -> tuple[str, str]:
    ours, floor = result["ours_bytes_a_message"], result["floor_bytes_a_message"]
    return f"{result['ratio']:.2f} of the bare rows", f"{ours:,.0f} of {floor:,.0f} bytes a message"


def _log(result: Result) -> tuple[str, str]:
    rates = {key[:-6].replace("_", " "): value for key, value in result.items() if key.endswith("_per_s")}
    return ", ".join(f"{name} {value:,.0f}/s" for name, value in rates.items()), ""


FIGURES = {
    "ratio": _ratio, "dispatch": _dispatch, "sends": _sends, "backlog": _growth, "consumers": _growth,
    "processes": _growth, "latency": _latency, "followers": _latency, "idle": _idle, "log": _log,
    "cost": _cost, "bytes written": _bytes_written,
}  # fmt: skip


def _pairs(result: Result) -> list[tuple[str, Result]]:
    return [(key, value) for key, value in result.items() if isinstance(value, dict)]


# ── plots ──


def plot(found: dict[str, Result], directory: Path) -> None:
    """Drain rate over backlog, and the histogram of latencies between two processes, as SVG."""
    import matplotlib as mpl  # noqa: PLC0415 - needed for plots only

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "cqueue"
    directory.mkdir(parents=True, exist_ok=True)
    _plot_backlog(found, directory / "drain-over-backlog.svg")
    _plot_latency(found, directory / "latency.svg")


def _plot_backlog(found: dict[str, Result], path: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    points = {
        int(key.removeprefix("of_")): value["per_s"]
        for name in ("backlog small", "backlog")
        for key, value in _pairs(found.get(name, {}))
    }
    if points:
        figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        axes.plot(sorted(points), [points[count] for count in sorted(points)], marker="o")
        axes.set(xscale="log", xlabel="messages in the backlog", ylabel="drained a second", ylim=(0, None))
        axes.grid(visible=True, alpha=0.3)
        figure.savefig(path, metadata={"Date": None})


def _plot_latency(found: dict[str, Result], path: Path) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above

    turns = [result for name, result in found.items() if name.startswith("latency ")]
    latencies = [row for result in turns for row in result.get("rows", ()) if row["rate_per_s"] == PLOTTED]
    if latencies:
        middle = sorted(latencies, key=lambda row: float(row["p50_ms"]))[len(latencies) // 2]
        counts = [count for _, count in middle["histogram"]]
        edges = [middle["histogram"][0][0] / 1.26, *(upper for upper, _ in middle["histogram"])]
        figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        axes.stairs(counts, edges, fill=True)
        axes.set(xscale="log", xlabel="ms from send to handler", ylabel="messages")
        axes.axvline(middle["p50_ms"], color="black", linestyle="--", label=f"p50 {middle['p50_ms']:.1f} ms")
        axes.axvline(middle["p99_ms"], color="black", linestyle=":", label=f"p99 {middle['p99_ms']:.1f} ms")
        axes.legend()
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
