"""systemd hears how the service is, over a real datagram socket."""

import math
import os
import socket
from contextlib import suppress

import pytest

from cqueue.dispatcher.service.health import Health
from cqueue.dispatcher.service.systemd import Notifier


def tell(notifier, reason="", *, ready=True, alive=False, stopping=False):
    notifier.tell(Health(alive=alive, ready=ready, reason=reason), stopping=stopping)


@pytest.fixture(params=["path", "abstract"])
def systemd(request, tmp_path):
    """A socket that listens as systemd does, and its address."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@cqueue-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address if address[0] == "/" else "\0" + address[1:])
        listener.settimeout(5)
        yield listener, address


def test_notices_arrive_on_path_and_abstract_sockets(systemd):
    listener, address = systemd
    notifier = Notifier(address, watchdog_s=10)
    tell(notifier, "2 running\nof 8", alive=True)
    tell(notifier, "2 running\nof 8", stopping=True)
    assert [listener.recv(1000) for _ in range(4)] == [
        b"READY=1",
        b"WATCHDOG=1",
        b"STATUS=2 running of 8",
        b"STOPPING=1",
    ]


def test_a_status_is_sent_when_it_changes(systemd):
    listener, address = systemd
    notifier = Notifier(address)
    for text in ("idle", "idle", "busy"):
        tell(notifier, text, ready=False)
    assert [listener.recv(1000) for _ in range(2)] == [b"STATUS=idle", b"STATUS=busy"]
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(1000)


def test_a_notice_that_found_a_full_queue_is_sent_when_it_is_said_again(systemd):
    """While a machine boots, systemd hears from many services; a lost READY would end this one."""
    listener, address = systemd
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others, suppress(BlockingIOError):
        others.setblocking(False)
        while True:
            others.sendto(b"STATUS=busy", listener.getsockname())
    notifier = Notifier(address)
    tell(notifier)
    listener.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            assert listener.recv(1000) == b"STATUS=busy"
    tell(notifier)
    tell(notifier)
    assert [listener.recv(1000) for _ in range(2)] == [b"READY=1", b"STATUS="]
    with pytest.raises(BlockingIOError):
        listener.recv(1000)


def test_the_environment_says_where_and_how_often():
    """The watchdog is fed at half the interval; no child speaks in our name."""
    environment = {"NOTIFY_SOCKET": "@systemd", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    assert Notifier.from_environment(environment).alive_every_s == 15
    assert not environment


def test_another_process_s_watchdog_is_not_ours():
    environment = {"NOTIFY_SOCKET": "@systemd", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}
    assert Notifier.from_environment(environment).alive_every_s == math.inf


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
def test_without_a_socket_that_we_know_nothing_happens(environment):
    notifier = Notifier.from_environment(environment)
    tell(notifier)
    assert notifier.alive_every_s == math.inf


def test_nobody_listening_any_more_is_no_error(tmp_path):
    tell(Notifier(str(tmp_path / "gone")))
