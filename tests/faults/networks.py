"""Networks of our own: a namespace for each node, joined by veth pairs to a bridge in one more.

Everything has addresses inside these namespaces only. The test itself moves into the one with the bridge.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

SUBNET = "10.97.0"
BRIDGE = "bridge"
CLONE_NEWNET = 0x40000000


class Network:
    """Nodes 1, 2, … on one bridge; each can be unplugged, after which packets to and from it vanish."""

    def __init__(self, nodes):
        self._tag = f"cq{os.getpid()}"
        self._nodes = range(1, nodes + 1)
        self._made = ExitStack()

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self._made.close()
            raise
        return self

    def __exit__(self, *_exc):
        self._made.close()

    @property
    def hub(self):
        """The namespace of the bridge, which reaches every node that is plugged in."""
        return f"{self._tag}-hub"

    @property
    def addresses(self):
        return [f"{SUBNET}.{number}" for number in self._nodes]

    def of(self, number):
        """The namespace of a node."""
        return f"{self._tag}-{number}"

    def prefix(self, number):
        """What runs a command in a node's namespace."""
        return ("ip", "netns", "exec", self.of(number))

    def unplug(self, number):
        ip("-n", self.hub, "link", "set", f"port{number}", "nomaster")

    def plug(self, number):
        ip("-n", self.hub, "link", "set", f"port{number}", "master", BRIDGE)

    def part(self):
        """Let nodes reach each other no more; the test, at the bridge, reaches all of them."""
        self._isolate("on")

    def join(self):
        """Let all nodes reach each other again."""
        self._isolate("off")

    def _isolate(self, whether):
        for number in self._nodes:
            port = ("dev", f"port{number}", "type", "bridge_slave")
            ip("-n", self.hub, "link", "set", *port, "isolated", whether)

    def _make(self):
        self._add(self.hub)
        ip("-n", self.hub, "link", "add", BRIDGE, "type", "bridge")
        ip("-n", self.hub, "address", "add", f"{SUBNET}.254/24", "dev", BRIDGE)
        ip("-n", self.hub, "link", "set", BRIDGE, "up")
        for number in self._nodes:
            self._add(self.of(number))
            port, peer = f"port{number}", ("peer", "name", "eth0", "netns", self.of(number))
            ip("-n", self.hub, "link", "add", port, "type", "veth", *peer)
            ip("-n", self.hub, "link", "set", port, "master", BRIDGE, "up")
            ip("-n", self.of(number), "address", "add", f"{SUBNET}.{number}/24", "dev", "eth0")
            ip("-n", self.of(number), "link", "set", "eth0", "up")

    def _add(self, name):
        ip("netns", "add", name)
        self._made.callback(ip, "netns", "delete", name)
        ip("-n", name, "link", "set", "lo", "up")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextmanager
def inside(namespace):
    """Be in a network namespace with this thread, and with all threads and processes that it starts."""
    with Path("/proc/thread-self/ns/net").open() as before, Path("/run/netns", namespace).open() as there:
        _enter(there)
        try:
            yield
        finally:
            _enter(before)


def _enter(file):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file.fileno(), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


@pytest.fixture
def network():
    """Three namespaces and a bridge, with the test inside; skipped where namespaces are refused."""
    with inside_network(3) as made:
        yield made


@contextmanager
def inside_network(nodes):
    """A network of some nodes, with the test inside; skips the test where namespaces are refused."""
    if shutil.which("ip") is None:
        pytest.skip("no `ip` (Debian: iproute2): nodes cannot be partitioned here")
    with ExitStack() as stack:
        try:
            made = stack.enter_context(Network(nodes))
            stack.enter_context(inside(made.hub))
        except (subprocess.CalledProcessError, OSError) as error:
            reason = getattr(error, "stderr", None) or error
            pytest.skip(f"network namespaces are refused here: {str(reason).strip()}")
        yield made
