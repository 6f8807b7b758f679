"""How a subscription looks: its state and members, and a line for each partition."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cqueue.cli.values import safe_for_terminal, show_duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cqueue.log.subscription import Subscription


def described(subscription: Subscription) -> dict[str, Any]:
    """What --json shows of it."""
    positions, owners = subscription.positions(), subscription.owners()
    return {
        "log": subscription.log,
        "subscription": subscription.name,
        "state": "paused" if subscription.paused else "active",
        "members": subscription.members(),
        "partitions": [
            {
                "partition": partition,
                "member": owners.get(partition),
                "position": positions.get(partition),
                "lag": lag.count,
                "lag_ms": int(lag.seconds * 1000),
            }
            for partition, lag in sorted(subscription.lag().items())
        ],
    }


def sheet(description: dict[str, Any]) -> RenderableType:
    """The same for people."""
    from rich.console import Group  # noqa: PLC0415 - not needed for --help
    from rich.table import Table  # noqa: PLC0415 - as above

    members = description["members"]
    head = f"{description['subscription']} of {description['log']}: {description['state']}, "
    head += f"{len(members)} member{'' if len(members) == 1 else 's'}"
    table = Table(box=None, pad_edge=False)
    for column in ("partition", "lag", "behind", "member"):
        table.add_column(column, justify="left" if column == "member" else "right", overflow="fold")
    for row in description["partitions"]:
        behind = show_duration(timedelta(milliseconds=row["lag_ms"])) if row["lag"] else "–"
        table.add_row(
            str(row["partition"]), f"{row['lag']:,}", behind, safe_for_terminal(row["member"] or "–")
        )
    return Group(head, table)
