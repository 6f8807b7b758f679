"""The doorbell: whether datagrams leave for those who listen, and reach this process.

Nobody answers a datagram, so that it arrived cannot be seen. What can be seen is a refusal: the system at
the other end says that no process has the port, or no route leads there.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from errno import errorcode
from threading import Event
from typing import TYPE_CHECKING, Final

from cqueue.client import address_of, inside
from cqueue.doctor.finding import Finding, Subject
from cqueue.doorbell import Address, HintCounts, Ring
from cqueue.doorbell.datagram import encode, short_name
from cqueue.doorbell.listener import Listener
from cqueue.doorbell.sender import sockaddr
from cqueue.runtime.urls import is_loopback
from cqueue.store.control import ListenerRow, ReadDigests, ReadListeners

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.doctor.site import Site

SUBJECT: Final = Subject("doorbell")
REFUSAL_S: Final = 0.3
"""Seconds to wait for a refusal: a few round trips within a data centre."""
OWN_S: Final = 5.0
"""Seconds to wait for the datagram that this process sends to itself. It takes a millisecond, but on a busy
machine the listening thread may not run at once."""
TO_NOBODY: Final = Ring(short_name("cqueue doctor"), b"", 0)
"""A ring for a name that no queue or log has: listeners count it, and do nothing."""
MOST: Final = 200
"""Listeners that are tried: each takes a socket."""


def check(site: Site) -> Iterator[Finding]:
    """Send one datagram to each process that listens, and one to this process itself."""
    if not site.settings.notify:
        yield SUBJECT.info("notify=off: messages are found by polling, up to 1 s later")
        return
    address = address_of(site.settings, site.connection)
    if address is not None:
        yield own(address)
    rows = listeners_of(site.client())
    loopback = all(is_loopback(server) for server, _ in (address.servers if address is not None else ()))
    yield from judged(rows, refusals(rows[:MOST]), all_here=loopback)


def listeners_of(client: Client) -> list[ListenerRow]:
    """Return the processes that listen, as others see them."""
    ask = inside(client).driver.ask
    digests = ask(ReadDigests())
    return ask(ReadListeners(tuple(digests)))


def own(address: Address) -> Finding:
    """Send a datagram to this process, at the address that it would tell others."""
    arrived = Event()
    try:
        listener = Listener(address, lambda _: arrived.set(), HintCounts())
    except OSError as exc:
        return SUBJECT.warning(
            f"this process cannot listen: {exc.strerror or exc}",
            reason="Messages of other processes are found by polling, up to 2 s later.",
            remedy="notify_host and notify_port in the URL: an address of this machine, and free ports",
        )
    try:
        where = f"{listener.host} port {listener.port}"
        family, to = sockaddr(listener.host, listener.port)
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.sendto(encode(TO_NOBODY, listener.key), to)
            if arrived.wait(OWN_S):
                return SUBJECT.ok(f"this process is reached at {where}")
    except OSError as exc:
        return _not_reached(where, exc.strerror or str(exc))
    finally:
        listener.close()
    return _not_reached(where, f"nothing arrived within {OWN_S:g} s")


def _not_reached(where: str, why: str) -> Finding:
    return SUBJECT.warning(
        f"this process is not reached at {where}: {why}",
        reason="Others would send there. Messages are then found by polling, up to 2 s later.",
        remedy="notify_host in the URL: the address at which others reach this machine; let UDP through",
    )


def refusals(rows: Sequence[ListenerRow]) -> Mapping[str, str]:
    """Send a datagram to each listener. Return, by listener, why one was refused; the others are left out."""
    found: dict[str, str] = {}
    with ExitStack() as stack:
        sockets: dict[str, socket.socket] = {}
        for row in rows:
            try:
                family, to = sockaddr(row.address, row.port)
                one = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                one.setblocking(False)
                one.connect(to)  # a refusal is told only to a connected socket
                one.send(encode(TO_NOBODY, row.key))
                sockets[row.listener] = one
            except OSError as exc:
                found[row.listener] = exc.strerror or str(exc)
        if sockets:
            time.sleep(REFUSAL_S)
        for listener, one in sockets.items():
            if error := one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                found[listener] = f"{os.strerror(error)} ({errorcode.get(error, error)})"
    return found


def judged(
    rows: Sequence[ListenerRow], refused: Mapping[str, str], *, all_here: bool = False
) -> Iterator[Finding]:
    """Judge the listeners.

    refused: why a datagram was refused, by listener. all_here: the whole cluster is on this machine.
    """
    for row in rows:
        if row.listener in refused:
            yield SUBJECT.warning(
                f"{row.listener} at {row.address} port {row.port}: {refused[row.listener]}",
                reason="The process is gone, which the table forgets within 30 s, or the network is closed. "
                "Its messages are found by polling, up to 2 s later.",
                remedy="If it stays: let UDP through to that address and port; notify_host of that process",
                figures={"listener": row.listener, "address": row.address, "port": row.port},
            )
    hidden = [] if all_here else [row for row in rows if is_loopback(row.address)]
    if hidden:
        yield SUBJECT.warning(
            f"{len(hidden)} of {len(rows)} listen at an address of their own machine only: "
            f"{hidden[0].listener} at {hidden[0].address}",
            reason="No other machine reaches them. Their messages are found by polling, up to 2 s later.",
            remedy="notify_host in their URL: the address at which others reach their machine",
            figures={"listeners": [row.listener for row in hidden]},
        )
    left = len(rows) - len({row.listener for row in rows if row.listener in refused})
    if not rows:
        yield SUBJECT.info("no process listens, so nobody is told of a send")
    elif left and not hidden:
        yield SUBJECT.ok(
            f"{left} of {len(rows)} listeners refused nothing; that a datagram arrived cannot be seen",
            figures={"listeners": len(rows), "refused": len(refused)},
        )
