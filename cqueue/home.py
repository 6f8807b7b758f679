"""Where clients of a keyspace work: in one data centre, its home, unless all of them agree on each mutation.

Claims of two data centres do not see each other under `local_serial`, and what one of them acknowledges the
other may lack. So a client elsewhere is refused when it connects. One that runs when the home is moved is
refused from then on, and for good: what it remembers, such as which wide rows it has registered, was stored
in a data centre that may have lost it.
"""

from __future__ import annotations

from cqueue.errors import WrongDataCentre
from cqueue.store.operations import DeploymentRow


def check_home(home_dc: str | None, local_dc: str | None) -> None:
    """Refuse a client whose data centre is not the home.

    Raises:
        WrongDataCentre: it is another one.
    """
    if home_dc is not None and local_dc is not None and home_dc != local_dc:
        raise WrongDataCentre(
            f"Clients of this keyspace work in data centre {home_dc}, and this one has local_dc={local_dc}. "
            "Claims of two data centres do not see each other: "
            f"set local_dc={home_dc}, or stop all clients there and run `cqueue dc switch {local_dc}`."
        )


def check_same_home(first: DeploymentRow, now: DeploymentRow, local_dc: str | None) -> None:
    """Refuse a client that was connected before the home was moved, be it away and back.

    Raises:
        WrongDataCentre: it has been moved.
    """
    check_home(now.home_dc, local_dc)
    if now.centre_epoch != first.centre_epoch:
        raise WrongDataCentre(
            f"The home of this keyspace was moved while this client ran; it is {now.home_dc} now. What the "
            "client remembers of the time before may be lost: connect again."
        )
