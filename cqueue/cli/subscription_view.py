"""How a subscription looks: its state and members, and a line for each partition."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.table import print_table
from cqueue.durations import show_duration

if TYPE_CHECKING:
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


def print_subscription(cli: CliContext, description: dict[str, Any]) -> None:
    """The same for people."""
    members = description["members"]
    head = f"{description['subscription']} of {description['log']}: {description['state']}, "
    head += f"{len(members)} member{'' if len(members) == 1 else 's'}"
    cli.console.print(head, soft_wrap=True, markup=False, highlight=False)
    rows = []
    for row in description["partitions"]:
        behind = show_duration(timedelta(milliseconds=row["lag_ms"])) if row["lag"] else "–"
        rows.append((str(row["partition"]), f"{row['lag']:,}", behind, row["member"] or "–"))
    header = ("partition", "lag", "behind", "member")
    print_table(cli, header, rows, right=header[:-1])
