"""The home of a keyspace: the one data centre in which its clients work under `local_serial`.

Under `local_serial` claims in two data centres do not see each other, and one data centre may lack data that
the other has acknowledged. So a client in another data centre is refused when it connects. A client that is
connected while the home is moved is refused from then on, for good: it remembers, for example, which wide
rows it has registered, and the new home may lack those registrations.
"""

from __future__ import annotations

from cqueue.errors import WrongDataCentre
from cqueue.store.operations import DeploymentRow


def check_home(home_dc: str | None, local_dc: str | None) -> None:
    """Refuse a client whose data centre is not the home.

    Raises:
        WrongDataCentre: the client's data centre is not the home.
    """
    if home_dc is not None and local_dc is not None and home_dc != local_dc:
        raise WrongDataCentre(
            f"Clients of this keyspace work in data centre {home_dc}, and this one has local_dc={local_dc}. "
            "Claims of two data centres do not see each other: "
            f"set local_dc={home_dc}, or stop all clients there and run `cqueue dc switch {local_dc}`."
        )


def check_same_home(first: DeploymentRow, now: DeploymentRow, local_dc: str | None) -> None:
    """Refuse a client that was connected before the home was moved, even if it was moved back.

    Raises:
        WrongDataCentre: the home was moved, or is not the client's data centre.
    """
    check_home(now.home_dc, local_dc)
    if now.centre_epoch != first.centre_epoch:
        raise WrongDataCentre(
            f"The home of this keyspace was moved while this client ran; it is {now.home_dc} now. What the "
            "client remembers of the time before may be lost: connect again."
        )
