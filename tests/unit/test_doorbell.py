"""Test the doorbell: datagrams, which process is notified, how often, and that failures reach no caller."""

import ipaddress
import os
import socket
import threading
import time
from datetime import timedelta
from functools import partial, reduce
from hashlib import blake2b
from itertools import pairwise
from operator import or_
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import cqueue
from cqueue import ids
from cqueue.client import Client, address_of
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.service.membership import share_of
from cqueue.doorbell import Address, Doorbell, Ring, Target
from cqueue.doorbell import directory as directories
from cqueue.doorbell import limiter as limiters
from cqueue.doorbell.coalescer import GAP_S, LONGEST_GAP_S, RingCoalescer
from cqueue.doorbell.datagram import (
    LONGEST,
    MAX_DETAILS,
    MAX_PLACE,
    VERSION,
    HintCounts,
    decode,
    encode,
    short_name,
)
from cqueue.doorbell.directory import Directory, encode_names, names_contain
from cqueue.doorbell.limiter import BURST, RATE, Limiter
from cqueue.doorbell.listener import Listener, _bound, _text
from cqueue.doorbell.sender import Sender, sockaddr
from cqueue.errors import Refused, Unavailable
from cqueue.protocol.row_memory import MAX_NAMED, Hint
from cqueue.runtime import rendezvous
from cqueue.runtime.wakeups import HintInbox, Wakeups, hint_of, target_of
from cqueue.settings import load
from cqueue.store.control import Listen, ListenerRow, ReadDigests
from cqueue.store.decode import listeners as decode_rows
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import WideRow
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until
from tests.unit.ctrl_c import at_each_moment, on_a_thread
from tests.unit.wanted import Wanted

KEY = bytes(range(16))
RING = Ring(short_name("orders@1"), b"1700000000000\0007", 0b11, 1_700_000_000_000_000)
LOCAL = Address("127.0.0.1")
SOON_S = 20.0


# ── Datagrams ──


def test_a_datagram_says_what_was_rung_and_is_small():
    """A datagram fits one packet of any network, and holds neither the queue's name nor a body."""
    data = encode(RING, KEY)
    assert decode(data, KEY) == RING
    assert len(data) < 60
    longest = RING._replace(place=bytes(MAX_PLACE), details=bytes(MAX_DETAILS))
    assert len(encode(longest, KEY)) == LONGEST <= 500
    assert decode(encode(longest, KEY), KEY) == longest


def test_a_datagram_with_one_bit_changed_says_nothing():
    sent = encode(RING, KEY)
    for bit in range(8 * len(sent)):
        changed = bytearray(sent)
        changed[bit // 8] ^= 1 << bit % 8
        assert decode(bytes(changed), KEY) is None, bit


@pytest.mark.parametrize(
    "data", [b"", b"x", bytes(26), bytes(27), bytes(LONGEST + 1), encode(RING, KEY)[:-1]]
)
def test_what_is_no_datagram_says_nothing(data):
    assert decode(data, KEY) is None


def test_a_datagram_for_another_listener_or_of_another_version_says_nothing():
    assert decode(encode(RING, KEY), KEY[::-1]) is None
    data = encode(RING, KEY)
    other = bytes([VERSION + 1]) + data[1:-16]
    assert decode(other + blake2b(other, digest_size=16, key=KEY).digest(), KEY) is None


def test_a_hint_comes_through_as_it_was():
    """A hint survives encoding, for a wide row at any place, with any priorities and with what it names."""
    named = (ids.from_ticks(17, 5), *ids.packed(18, 6, 7))
    for wide_row in (WideRow("q@1", 1_700_000_000_000, 999), WideRow("q@1", 0, -64)):
        for hint in (Hint(wide_row, frozenset({0, 9})), Hint(wide_row, frozenset({9}), named)):
            assert decoded(hint) == hint


def decoded(*hints: Hint) -> Hint | None:
    """Return what a listener makes of these hints' rings, merged into one datagram."""
    bell = RecordingBell()
    for hint in hints:
        Wakeups(bell).ring(hint)
    return hint_of("q@1", decode(encode(reduce(or_, bell.rings), KEY), KEY))


class RecordingBell:
    """A doorbell that only notes what it is to send."""

    def __init__(self) -> None:
        self.rings: list[Ring] = []

    def ring(self, target, flags, due_us, details):
        self.rings.append(Ring(short_name(target.name), target.place, flags, due_us, details))
        return False


def test_merged_rings_name_everything_or_nothing():
    """A listener that was told of some messages only would leave the others to its next search."""
    wide_row, (one, other, *more) = WideRow("q@1", 1, 2), [ids.from_ticks(9, n) for n in range(MAX_NAMED + 1)]
    first = Hint(wide_row, frozenset({3}), (one,))
    assert decoded(first, first._replace(named=(other, one))) == first._replace(named=(one, other))
    assert decoded(first, Hint(wide_row, frozenset({3}))) == Hint(wide_row, frozenset({3}))
    assert decoded(first, Hint(wide_row, frozenset({4}), (other,))) == Hint(wide_row, frozenset({3, 4}))
    assert decoded(first, first._replace(named=(other, *more))) == Hint(wide_row, frozenset({3}))


@pytest.mark.parametrize("details", [b"x", bytes(15), ids.to_bytes(ids.packed(18, 6, 7)[0] | 0xFF)])
def test_ids_that_no_sender_names_are_left_out(details):
    """An id beyond its pack would stand for the whole pack in a slot."""
    ring = Ring(short_name("q@1"), b"1\0002", 1, 0, details)
    assert hint_of("q@1", ring) == Hint(WideRow("q@1", 1, 2), frozenset({0}))


@pytest.mark.parametrize(
    ("place", "flags"),
    [
        (b"", 1),
        (b"1\0002\0003", 1),
        (b"x\0001", 1),
        (b"1\0002", 0),
        (b"1\0002", 1 << 10),
        (b"-1\0000", 1),
        (b"1\0001000", 1),
        (b"9999999999999999999\0000", 1),
    ],
)
def test_what_no_sender_of_a_queue_says_is_no_hint(place, flags):
    """A valid tag is not enough: a consumer must not look at a place that cannot exist."""
    assert hint_of("q@1", Ring(short_name("q@1"), place, flags)) is None


# ── Who is told ──


def row(name, *names, **changes):
    return ListenerRow(name, "127.0.0.1", 4000, KEY, encode_names(map(short_name, names)))._replace(**changes)


def test_a_listing_holds_exactly_what_it_was_made_of():
    """A listing holds no other name, even if bytes of two neighbouring hashes look like a third one."""
    names = [b"\0\0\0\1", b"\0\1\0\0", b"\1\0\0\0", b"\7\7\7\7"]
    for count in range(5):
        held = encode_names(names[:count])
        assert [name for name in [*names, b"\0\0\1\0"] if names_contain(held, name + b"more")] == names[
            :count
        ]


def test_one_that_waits_for_very_much_waits_for_all(monkeypatch):
    """A listener's row, which is written every few seconds, stays small."""
    monkeypatch.setattr(directories, "MAX_NAMES", 2)
    assert len(encode_names([b"aaaa", b"bbbb"])) == 8
    held = encode_names([b"aaaa", b"bbbb", b"cccc"])
    assert held is None
    assert names_contain(held, b"anything")


def test_one_listener_is_told_of_a_wide_row_and_it_is_the_one_that_looks_there_first():
    """Senders and dispatchers divide wide rows by one hash, so the notified process looks there first."""
    fleet = ["a", "b", "c"]
    known = Directory([row(name, "q@1") for name in fleet], me="sender")
    told = set()
    for shard in range(50):
        wide_row = WideRow("q@1", 1_700_000_000_000, shard)
        target = target_of(Hint(wide_row, frozenset({0})), here=False)
        (chosen,) = known.others(target)
        assert share_of(chosen.listener, fleet)(wide_row)
        told.add(chosen.listener)
    assert told == set(fleet)


def test_a_process_that_waits_itself_is_one_of_those_who_may_be_told():
    """A sending process that also waits gets its share without a datagram, even if its row was not read."""
    for rows in ([row("b", "q@1")], [row("me", "q@1"), row("b", "q@1")]):
        known = Directory(rows, me="me")
        names = [known.others(Target("q@1", b"%d" % n, here=True)) for n in range(50)]
        assert {tuple(one.listener for one in some) for some in names} == {("b",), ()}
        assert all(known.others(Target("q@1", b"%d" % n, here=False)) for n in range(50))


def test_nobody_is_told_of_what_he_does_not_wait_for():
    known = Directory([row("a", "other@1"), row("b", "q@1"), row("c")], me="me")
    assert [one.listener for one in known.others(Target("q@1", b"x"))] == ["b"]
    assert known.others(Target("third@1", b"x")) == []


def test_a_sender_to_many_queues_remembers_some_of_them(monkeypatch):
    """Listeners may stay the same for weeks, while a process sends to a new queue for each host."""
    monkeypatch.setattr(directories, "REMEMBERED", 100)
    known = Directory([row("c")._replace(names=None)], me="me")
    for number in range(1000):
        assert [one.listener for one in known.others(Target(f"q@{number}", b"x"))] == ["c"]
        assert max(len(known._others), len(known._by_target)) <= 100


def test_a_sender_reads_only_what_has_changed():
    """Rows are large where processes wait for thousands of queues, and senders read every three seconds."""
    store, asked = MemoryStore(), []

    def ask(operation):
        asked.append(operation)
        return store.execute(operation)

    for name in ("a", "b", "me"):
        store.execute(Listen(row(name, "q@1"), 60))
    known = Directory(me="me").refreshed(ask)
    assert [set(getattr(one, "listeners", ())) for one in asked] == [set(), {"a", "b"}]
    assert known.refreshed(ask) is known
    store.execute(Listen(row("b", "q@1", "other@1"), 60))
    store.execute(Listen(row("c", "other@1"), 60))
    del asked[:]
    known = known.refreshed(ask)
    assert [set(getattr(one, "listeners", ())) for one in asked] == [set(), {"b", "c"}]
    everybody = Target("other@1", b"", to_all=True)
    assert {one.listener for one in known.others(everybody)} == {"b", "c"}
    assert {one.listener for one in known.others(everybody._replace(name="q@1"))} == {"a", "b"}
    store._listeners.remove("b")
    assert {one.listener for one in known.refreshed(ask).others(everybody)} == {"c"}


@pytest.mark.parametrize("change", [{"port": 1}, {"key": bytes(16)}, {"names": None}, {"address": "::1"}])
def test_whatever_changes_in_a_row_is_read_again(change):
    assert row("a", "q@1")._replace(**change).digest != row("a", "q@1").digest


def test_all_are_told_where_all_are_to_be_told():
    known = Directory([row(name, "log@1") for name in "abc"], me="b")
    assert {one.listener for one in known.others(Target("log@1", b"", to_all=True))} == {"a", "c"}


def test_who_was_told_and_cannot_look_has_the_next_one_told_and_nobody_is_told_twice():
    """A busy process passes a ring to the next in rank; the last one passes it to nobody."""
    fleet, target = "abcd", Target("q@1", b"7", passed=True)
    rows = [row(name, "q@1") for name in fleet]
    (first,) = Directory(rows, me="sender").others(target._replace(passed=False))
    told = [first.listener]
    while after := Directory(rows, me=told[-1]).others(target):
        told += [one.listener for one in after]
    assert sorted(told) == list(fleet)


# ── When ──


def test_a_burst_is_two_rings_and_its_last_message_is_never_without_one():
    """The first ring of a burst is sent at once, the others as one ring with all their flags."""
    coalescer = RingCoalescer()
    assert coalescer.offer("a", 1, 10.0)
    assert not coalescer.offer("a", 2, 10.0 + GAP_S / 3)
    assert not coalescer.offer("a", 4, 10.0 + GAP_S / 2)
    assert coalescer.due(10.0 + GAP_S / 2) == []
    assert coalescer.next_s == pytest.approx(10.0 + GAP_S)
    assert coalescer.due(10.0 + GAP_S + 1e-9) == [("a", 6)]
    assert coalescer.next_s == float("inf")
    assert coalescer.offer("a", 1, 11.0)


def test_rings_that_keep_coming_become_rarer():
    """A listener that is notified of thousands of sends a second is busy, and finds the messages anyway."""
    coalescer, sent, now_s = RingCoalescer(), 0, 10.0
    for _ in range(10_000):
        now_s += 0.0001
        sent += coalescer.offer("a", 1, now_s)
        sent += len(coalescer.due(now_s))
    assert 1.0 / LONGEST_GAP_S * 0.8 < sent < 1.0 / LONGEST_GAP_S * 1.3 + 10
    assert coalescer.due(now_s + LONGEST_GAP_S)


def test_places_do_not_hold_each_other_up():
    coalescer = RingCoalescer()
    assert all(coalescer.offer(place, 1, 10.0) for place in "abc")


def test_what_waits_to_be_released_goes_then_and_at_a_close_at_once():
    coalescer = RingCoalescer()
    coalescer.delay("a", 1)
    coalescer.delay("a", 2)
    assert coalescer.due(1e9) == []
    coalescer.release(5.0)
    assert coalescer.due(5.0) == [("a", 3)]
    coalescer.delay("b", 1)
    assert coalescer.due(5.0, at_once=True) == [("b", 1)]


def test_hints_cause_so_many_polls_and_no_more():
    """Each name causes 1,000 polls a second and 100 at once; further rings are merged into the next poll."""
    limiter, told, now_s = Limiter(), [], 10.0
    for number in range(20_000):
        now_s = 10.0 + number * 0.0005  # ten seconds
        if limiter.offer(RING._replace(flags=1 << number % 10), now_s):
            told.append(now_s)
        told += [now_s for _ in limiter.due(now_s)]
    assert RATE * 10 <= len(told) <= RATE * 10 + BURST + 1
    assert sum(at_s == 10.0 + 0.0005 * n for n, at_s in enumerate(told[:BURST])) == BURST
    assert limiter.offer(RING._replace(name=b"another!"), now_s)


def test_a_limiter_of_many_names_remembers_those_that_ring_now(monkeypatch):
    """A process may wait for a new queue for each host, for weeks."""
    monkeypatch.setattr(limiters, "REMEMBERED", 100)
    limiter = Limiter()
    while limiter.offer(RING, 10.0):
        pass
    for number in range(1000):
        assert limiter.offer(RING._replace(name=b"%d" % number), 10.0 + number * 2e-5)
        assert len(limiter._next_s) <= 101
    assert list(limiter.due(10.0)) == []  # the bucket of the busy name is as empty as before
    assert list(limiter.due(10.0 + 2 / RATE)) == [RING]


def test_rings_of_a_sender_whose_clock_is_ahead_put_each_other_off_no_further():
    """Of 200 rings a second, each 10 ms too early, every one is reported within 10 ms."""
    limiter, told = Limiter(), []
    for number in range(1, 1001):
        now_s = number * 0.005
        assert not limiter.offer(RING, now_s, now_s + 0.010)
        told += [now_s for _ in limiter.due(now_s)]
    assert max(later - earlier for earlier, later in pairwise([0.0, *told, 5.0])) <= 0.0201
    assert list(limiter.due(5.011)) == [RING]
    assert limiter.rest_s(5.011) is None


def test_a_ring_that_is_due_waits_for_none_that_is_not():
    """A due ring waits for no early one, of its place or another: each sender has its own clock."""
    limiter, elsewhere = Limiter(), RING._replace(place=b"elsewhere", details=bytes(MAX_DETAILS))
    assert not limiter.offer(RING, 10.0, 10.1)
    assert not limiter.offer(elsewhere, 10.0, 10.0)
    assert list(limiter.due(10.0)) == [elsewhere]
    assert not limiter.offer(RING, 10.0, 10.0)
    assert list(limiter.due(10.0)) == [RING]
    assert list(limiter.due(10.05)) == []
    assert list(limiter.due(10.1)) == [RING]


def test_what_came_too_often_is_told_at_the_next_turn_with_all_its_flags():
    limiter = Limiter()
    while limiter.offer(RING, 10.0):
        pass
    assert not limiter.offer(RING._replace(flags=0b100), 10.0)
    assert not limiter.offer(RING._replace(place=b"elsewhere", flags=0b1), 10.0)
    rest_s = limiter.rest_s(10.0)
    assert 0 < rest_s <= 1 / RATE
    assert list(limiter.due(10.0)) == []
    assert {(ring.place, ring.flags) for ring in limiter.due(10.0 + rest_s + 1e-9)} == {
        (RING.place, 0b111),
        (b"elsewhere", 0b1),
    }
    assert limiter.rest_s(11.0) is None


# ── The socket ──


@pytest.fixture
def heard():
    return Heard()


class Heard:
    """A listener's callback that records rings and sets an event."""

    def __init__(self):
        self.rings = []
        self._came = threading.Condition()

    def __call__(self, *ring):
        with self._came:
            self.rings.append(ring[0] if len(ring) == 1 else ring)
            self._came.notify_all()

    def wait(self, count=1, seconds=SOON_S):
        with self._came:
            return self._came.wait_for(lambda: len(self.rings) >= count, seconds)


def send(listener, *datagrams):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for data in datagrams:
            sender.sendto(data, (listener.host, listener.port))


def test_forged_garbled_and_empty_datagrams_are_dropped_and_counted(heard):
    """Valid datagrams still arrive, also repeated ones: a hint may come twice."""
    counts = HintCounts()
    listener = Listener(LOCAL, heard, counts)
    try:
        true = encode(RING, listener.key)
        send(listener, b"", b"garbage", bytes(2000), encode(RING, KEY), true[:-1] + b"\0", true, true)
        assert heard.wait(2)
        assert heard.rings == [RING, RING]
        assert (counts.received, counts.forged) == (2, 5)
    finally:
        listener.close()


def test_a_ring_of_a_sender_whose_clock_is_ahead_is_told_when_it_is_due_here(heard):
    """A consumer that polls too early finds nothing, and would not poll again for long."""
    now = [1_000_000_000]
    listener = Listener(LOCAL, heard, HintCounts(), lambda: now[0])
    try:
        send(listener, encode(RING._replace(due_us=now[0]), listener.key))
        assert heard.wait()
        begun_s = time.monotonic()
        send(listener, encode(RING._replace(due_us=now[0] + 30_000), listener.key))
        assert heard.wait(2)
        assert time.monotonic() - begun_s >= 0.03
        send(listener, encode(RING._replace(due_us=now[0] + 3_600_000_000), listener.key))
        assert heard.wait(3)  # one of the clocks is wrong: nobody waits for it
    finally:
        listener.close()


def test_a_listener_that_fails_to_tell_goes_on(heard):
    def broken(ring):
        heard(ring)
        if len(heard.rings) == 1:
            raise RuntimeError("no")

    listener = Listener(LOCAL, broken, HintCounts())
    try:
        send(listener, encode(RING, listener.key), encode(RING, listener.key))
        assert heard.wait(2)
    finally:
        listener.close()


def test_a_closed_listener_lets_its_port_go_at_once(heard, monkeypatch):
    """Before its thread looks by itself, which it does not do in this test."""
    monkeypatch.setattr("cqueue.doorbell.listener.STOP_CHECK_S", 3600.0)
    listener = Listener(LOCAL, heard, HintCounts())
    listener.close()
    listener._thread.join(60)  # `close` gives up sooner, if a starved thread is late
    assert not listener._thread.is_alive()
    again = Listener(Address("127.0.0.1", (listener.port, listener.port)), heard, HintCounts())
    again.close()


def test_of_several_ports_the_first_free_one_is_taken(heard):
    """Several processes of one machine can share a port range that a firewall lets through."""
    one = Listener(LOCAL, heard, HintCounts())
    try:
        port = one.port
        other = Listener(Address("127.0.0.1", (port, port + 20)), heard, HintCounts())
        other.close()
        assert port < other.port <= port + 20
    finally:
        one.close()


def test_the_address_is_that_by_which_the_servers_are_reached():
    """A route through the network counts for more than one on this machine."""
    assert Address(servers=(("127.0.0.1", 9042),)).own() == "127.0.0.1"
    assert Address("localhost").own() in {"127.0.0.1", "::1"}
    with pytest.raises(OSError, match="no route"):
        Address(servers=(("no.such.name.invalid", 9042),)).own()


def test_a_link_local_address_keeps_its_scope():
    """Without its interface, no socket is bound to it, and no datagram leaves for it."""
    number = socket.if_nametoindex("lo")
    assert Address("fe80::1%lo").own() == "fe80::1%lo"
    assert _text(("fe80::1", 7400, 0, number)) == "fe80::1%lo"  # as a socket on the way to a server says
    assert sockaddr("fe80::1%lo", 7400) == (socket.AF_INET6, ("fe80::1", 7400, 0, number))
    with pytest.raises(OSError, match="not known"):
        sockaddr("fe80::1%nosuch", 7400)


def test_datagrams_reach_a_link_local_address(heard):
    """A send of another process of this machine arrives there."""
    addresses = Path("/proc/net/if_inet6")
    if not addresses.exists():
        pytest.skip("this machine has no IPv6")
    found = [line.split() for line in addresses.read_text(encoding="ascii").splitlines()]
    own = [(parts[0], parts[5]) for parts in found if parts[3] == "20"]  # of a link
    if not own:
        pytest.skip("this machine has no link-local address")
    address = f"{ipaddress.IPv6Address(int(own[0][0], 16))}%{own[0][1]}"
    listener = Listener(Address(address), heard, HintCounts())
    try:
        sender = Sender(HintCounts(), lambda *_: None)
        sender.send(RING, [ListenerRow("other", listener.host, listener.port, listener.key, None)])
        assert heard.wait()
        assert listener._socket.getsockname()[3]
    finally:
        sender.close()
        listener.close()


def test_nodes_are_asked_for_as_they_know_themselves():
    """A client with a tunnel to Cassandra at 127.0.0.1 is not at 127.0.0.1 for other processes."""
    hosts = [
        SimpleNamespace(
            address="127.0.0.1", broadcast_rpc_address="192.0.2.9", endpoint=SimpleNamespace(port=9042)
        ),
        SimpleNamespace(address="192.0.2.8", broadcast_rpc_address=None, endpoint=SimpleNamespace(port=9042)),
    ]
    connection = SimpleNamespace(cluster=SimpleNamespace(metadata=SimpleNamespace(all_hosts=lambda: hosts)))
    address = address_of(load("cassandra://127.0.0.1:9042/k", environ={}), connection)
    nodes = [("192.0.2.9", 9042), ("192.0.2.8", 9042), ("127.0.0.1", 9042)]
    assert list(dict.fromkeys(address.servers)) == nodes


@pytest.mark.parametrize("scope", ["\u00e9" * 100, "\0", "e\n"])
def test_an_address_that_no_socket_takes_is_left_out(scope):
    """A damaged row of another process fails no send of this one."""
    row = ("other", f"fe80::1%{scope}", 7400, KEY, None)
    assert decode_rows([row, ("another", "fe80::1%eth0", 7400, KEY, None)]) == [
        ListenerRow("another", "fe80::1%eth0", 7400, KEY, None)
    ]


def test_an_address_from_which_datagrams_are_led_here_is_told_to_others(heard):
    """A container's published address cannot be bound, but is where others must send to."""
    listener = Listener(Address("192.0.2.1"), heard, HintCounts())
    try:
        assert listener.host == "192.0.2.1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(encode(RING, listener.key), ("127.0.0.1", listener.port))
        assert heard.wait()
    finally:
        listener.close()


# ── Two processes, played by two clients of one store ──


class Watched(FaultyStore):
    """A store that signals each read and write of listeners, and fails on demand."""

    def __init__(self):
        super().__init__()
        self.seen = Heard()

    def together(self, operations):
        try:
            return super().together(operations)
        finally:
            for operation in operations:
                if isinstance(operation, Listen | ReadDigests):
                    self.seen(operation)


@pytest.fixture
def store():
    return Watched()


@pytest.fixture
def clients(store):
    """Return a sender and a receiver that reach each other only through the store and by datagrams."""
    with Client(store, notify=LOCAL) as sender, Client(store, notify=LOCAL) as receiver:
        sender.create_queue("orders")
        yield sender, receiver


LONG = timedelta(seconds=30)
"""Between polls of a consumer that is to be woken by a datagram."""


def waiting(consumer):
    """Start a thread that receives; return, once it waits, the callback that records its messages."""
    came = Heard()
    thread = threading.Thread(
        target=lambda: came(consumer.receive(1, wait=timedelta(seconds=60))), daemon=True
    )
    thread.start()
    until(lambda: consumer._receiver.inbox.waiting)
    return came


def patient(client, name="orders"):
    return client.queue(name).consumer(poll_interval=LONG, max_poll_interval=LONG)


def test_a_send_wakes_a_consumer_of_another_process(clients, store):
    """A sender's first send wakes it, too, although the sender does not know the listeners yet."""
    sender, receiver = clients
    with patient(receiver) as consumer:
        came = waiting(consumer)
        assert store.seen.wait()
        sender.queue("orders").send(b"x", priority=3)
        assert came.wait()
        assert consumer._receiver.last.told
        assert [message.body for message in came.rings[0]] == [b"x"]
        until(lambda: sender._doorbell.counts.sent == 1)
    assert receiver._doorbell.counts.received == 1


def test_a_message_that_is_due_later_rings_nobody(clients, store):
    sender, receiver = clients
    with patient(receiver) as consumer:
        consumer.receive()
        assert store.seen.wait()
        sender.queue("orders").send(b"later", delay=timedelta(minutes=1))
        came = waiting(consumer)
        sender.queue("orders").send(b"now")
        assert came.wait()
        until(lambda: sender._doorbell.counts.sent)
    assert sender._doorbell.counts.sent == 1


def test_a_lost_datagram_costs_a_poll(clients, store, monkeypatch):
    """Only latency depends on a datagram."""
    sender, receiver = clients
    monkeypatch.setattr(Sender, "send", lambda *_: None)
    with receiver.queue("orders").consumer(max_poll_interval=timedelta(milliseconds=50)) as consumer:
        consumer.receive()
        assert store.seen.wait()
        sender.queue("orders").send(b"x")
        assert [one.body for one in consumer.receive(wait=timedelta(seconds=SOON_S))] == [b"x"]
    assert receiver._doorbell.counts.received == 0


def test_a_process_that_waits_alone_is_told_through_memory(store):
    with Client(store, notify=LOCAL) as client:
        client.create_queue("orders")
        with patient(client) as consumer:
            came = waiting(consumer)
            for number in range(3):
                client.queue("orders").send(b"%d" % number)
            assert came.wait()
        assert client._doorbell.counts == HintCounts()


def test_of_several_processes_one_is_told(clients, store):
    """Each send costs one datagram, however many processes wait, and none where the sender ranks first."""
    sender, receiver = clients
    with patient(receiver) as one, patient(sender) as other:
        one.receive()
        other.receive()
        assert store.seen.wait(2)
        doorbell = sender._doorbell
        doorbell.ring(Target("anything", b""))
        targets = [Target(f"orders@{incarnation(sender)}", b"%d\0000" % n, here=True) for n in range(100)]
        until(lambda: any(map(doorbell._directory.others, targets)))
        told = [doorbell.ring(target, 1) for target in targets]
    assert 0 < sum(told) < 100
    assert doorbell.counts.sent == 100 - sum(told)


def incarnation(client):
    return client._catalog.entry("orders").spec.incarnation


def test_without_the_table_messages_are_found_by_polling(store, caplog):
    """Before its migration a keyspace still sends and receives, and one log line says why it polls."""
    store.trouble = lambda operation: (
        Refused("table listeners does not exist") if isinstance(operation, Listen | ReadDigests) else None
    )
    with Client(store, notify=LOCAL) as sender, Client(store, notify=LOCAL) as receiver:
        queue = sender.create_queue("orders")
        with receiver.queue("orders").consumer(max_poll_interval=timedelta(milliseconds=50)) as consumer:
            consumer.receive()
            for number in range(20):
                queue.send(b"%d" % number)
                (message,) = consumer.receive(1, wait=timedelta(seconds=SOON_S))
                message.ack()
            assert store.seen.wait(2)
    kinds = [type(operation) for (operation) in store.seen.rings]
    assert kinds.count(ReadDigests) == 1
    lines = [record.message for record in caplog.records if "doorbell_off" in record.message]
    assert len(lines) == 2  # of two processes


def test_a_keyspace_that_does_not_answer_holds_up_no_send(store):
    """The doorbell's own thread reads the listeners, and pauses for seconds after a failure."""
    go_on, answers = threading.Event(), []

    def trouble(operation):
        if isinstance(operation, ReadDigests):
            answers.append(go_on.wait(SOON_S))
            return Unavailable("away")
        return None

    store.trouble = trouble
    with Client(store, notify=LOCAL) as sender:
        queue = sender.create_queue("orders")
        for _ in range(10):
            queue.send(b"x")
        assert not answers
        go_on.set()
        assert store.seen.wait()
        queue.send(b"x")
    assert len(store.seen.rings) == 1


def test_a_slow_name_server_holds_up_nobody(store, monkeypatch):
    """The doorbell's own thread resolves this process's address."""
    go_on, answers = threading.Event(), []

    def slow(_address):
        answers.append(go_on.wait(SOON_S))
        return "127.0.0.1"

    monkeypatch.setattr(Address, "own", slow)
    with Client(store, notify=LOCAL) as client:
        queue = client.create_queue("orders")
        with queue.consumer() as consumer:
            consumer.receive()
            for _ in range(3):
                queue.send(b"x")
                assert consumer.receive(wait=timedelta(seconds=SOON_S))
            assert not answers
            go_on.set()
            assert store.seen.wait()


def test_a_taken_port_turns_only_the_doorbell_off(store, caplog):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        address = Address("127.0.0.1", (port, port))
        with Client(store, notify=address) as client:
            queue = client.create_queue("orders")
            with queue.consumer() as consumer:
                queue.send(b"x")
                assert consumer.receive(wait=timedelta(seconds=SOON_S))
                until(lambda: "doorbell_deaf" in caplog.text)
    assert caplog.text.count("doorbell_deaf") == 1


def test_all_who_wait_for_a_name_in_one_process_are_told(clients, store):
    """Several followers of one log are all notified, until they leave."""
    sender, receiver = (client._doorbell for client in clients)
    one, other = Heard(), Heard()
    receiver.listen("log@1", one)
    receiver.listen("log@1", other)
    assert store.seen.wait()
    everybody = Target("log@1", b"3", to_all=True)
    assert not sender.ring(everybody, 5)
    assert one.wait()
    assert other.wait()
    assert one.rings == other.rings == [Ring(short_name("log@1"), b"3", 5)]
    receiver.forget("log@1", other)
    until(lambda: sender.ring(everybody) or len(one.rings) > 1)
    assert len(other.rings) == 1


def test_a_listener_asks_no_node_for_the_time(clients, store, monkeypatch):
    """Nodes that hang would hold up every hint until they answer."""
    sender, receiver = clients
    heard, asked = Heard(), []
    receiver._doorbell.listen("log@1", heard)
    assert store.seen.wait()
    monkeypatch.setattr(receiver._driver.clock, "sync", lambda: asked.append(1) or 1)
    sender._doorbell.ring(Target("log@1", b"3", to_all=True), 5, due_us=1)
    assert heard.wait()
    assert not asked


def test_a_dispatcher_says_what_was_found_by_a_hint(clients, store):
    """Metrics tell messages found by a hint from those found by polling, and count datagrams."""
    sender, receiver = clients
    options = {"consumers": 1}  # two would poll at different times
    options |= {"poll_interval": timedelta(minutes=1), "max_poll_interval": timedelta(minutes=5)}
    dispatcher = Dispatcher(receiver.queue("orders"), lambda *_: None, **options)
    dispatcher.start()
    try:
        until(lambda: dispatcher.stats().hints == HintCounts() and store.seen.rings)
        poller = dispatcher.engine.poll_schedule.pollers[0]
        until(lambda: poller.state.began_s is None and poller.state.pause_s)  # longer than this test
        sender.queue("orders").send(b"x")
        until(lambda: dispatcher.stats().total.acked)
        stats = dispatcher.stats()
        assert (stats.total.received, stats.queues["orders"].found_by_hint) == (1, 1)
        assert stats.hints == HintCounts(received=1)
    finally:
        dispatcher.stop()


def test_a_message_does_not_wait_for_a_process_whose_handlers_are_all_at_work(clients, store, monkeypatch):
    """A busy process passes the ring to another one, which would not poll for half a minute."""
    sender, receiver = clients
    go_on = threading.Event()
    with Client(store, notify=LOCAL) as other:
        busy = other._doorbell.name
        ranked = lambda self, _: sorted((name for name, _ in self._keys), key=lambda name: name != busy)  # noqa: E731
        monkeypatch.setattr(rendezvous.Names, "ranked", ranked)
        options = {"threads": 1, "consumers": 1, "batch_size": 2, "backlog": 2}
        dispatcher = Dispatcher(
            other.queue("orders"), lambda *_: go_on.wait(600), **options, max_poll_interval=LONG
        )
        dispatcher.start()
        try:
            schedule, sent = dispatcher.engine.poll_schedule, 0
            while schedule._room(schedule.pollers[0], 0):
                sender.queue("orders").send(b"long")
                sent += 1
                until(
                    lambda sent=sent: dispatcher.stats().total.received == sent and dispatcher.stats().running
                )
            schedule.pollers[0].consumer.receive(1)  # finds nothing, and lets go of the lock
            with patient(receiver) as consumer:
                came = waiting(consumer)
                until(lambda: len(store.store.execute(ReadDigests())) == 2)
                for client in (sender, other):  # they may not know yet that the receiver waits
                    client._doorbell._directory.read_s = float("-inf")
                sender.queue("orders").send(b"now")
                assert came.wait()
        finally:
            go_on.set()
            dispatcher.stop()


def test_a_closed_consumer_is_not_waited_for_by_others(clients, store):
    """A closing process removes its row at once, so that others do not ring in vain for long."""
    _, receiver = clients
    with patient(receiver) as consumer:
        consumer.receive()
        assert store.seen.wait()
        assert [type(one.row.names) for one in store.seen.rings] == [bytes]
    receiver.close()
    last = [one for one in store.seen.rings if isinstance(one, Listen)][-1]
    assert (last.row.names, last.ttl_s) == (b"", 1)


def test_a_dead_listener_costs_polls_until_its_row_is_gone(clients, store):
    """Once the row has expired, the next process in rank is notified."""
    sender, receiver = clients
    dead = ListenerRow("dead", "127.0.0.1", 9, KEY, None)
    store.store.execute(Listen(dead, 1))
    with patient(receiver) as consumer:
        came = waiting(consumer)
        assert store.seen.wait()
        until(lambda: "dead" not in store.store.execute(ReadDigests()))
        sender.queue("orders").send(b"x")
        assert came.wait()


def test_a_queue_that_is_made_again_is_listened_for_anew(clients, store):
    sender, receiver = clients
    with patient(receiver) as consumer:
        consumer.receive()
        assert store.seen.wait()
        sender.delete_queue("orders")
        sender.create_queue("orders")
        receiver._catalog._polled_s = float("-inf")
        receiver._catalog.refresh()
        store.seen.rings.clear()
        consumer.receive()
        assert store.seen.wait()
        assert store.seen.rings[0].row.names == encode_names([short_name(f"orders@{incarnation(sender)}")])


def test_a_close_lets_the_first_ring_of_a_short_life_go(store, monkeypatch):
    """A short process such as `cqueue send` ends right after its message was acknowledged."""
    monkeypatch.setattr("cqueue.doorbell.doorbell.CLOSE_WAIT_S", SOON_S)  # a busy machine may need more
    with Client(store, notify=LOCAL) as receiver:
        receiver.create_queue("orders")
        with patient(receiver) as consumer:
            came = waiting(consumer)
            assert store.seen.wait()
            with Client(store, notify=LOCAL) as sender:
                sender.queue("orders").send(b"x")
            assert sender._doorbell.counts.sent == 1
            assert came.wait()


def test_a_close_waits_for_nothing_that_does_not_answer(store):
    go_on, answers = threading.Event(), []

    def trouble(operation):
        if isinstance(operation, ReadDigests):
            answers.append(go_on.wait(SOON_S))

    store.trouble = trouble
    client = Client(store, notify=LOCAL)
    client.create_queue("orders").send(b"x")
    client.close()
    assert not answers
    go_on.set()


def test_a_client_of_before_a_fork_rings_nobody_in_the_child(clients, store):
    """Closing the parent's client in the child waits for nothing."""
    sender, receiver = clients
    with patient(receiver) as consumer:
        consumer.receive()
        assert store.seen.wait()
        sender.queue("orders").send(b"x")
        child = os.fork()
        if not child:
            code = 1
            try:
                sender.queue("orders").send(b"y")
            except cqueue.Closed:
                sender.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        sender.queue("orders").send(b"z")


def test_an_idle_client_has_neither_socket_nor_thread(store):
    with Client(store, notify=LOCAL) as client:
        client.create_queue("orders")
        assert client._doorbell._thread is None
        assert client._doorbell._presence._listener is None
        client.queue("orders").send(b"x")
        assert client._doorbell._presence._listener is None


def test_the_first_client_of_a_process_has_the_name_that_its_dispatcher_has():
    """The dispatcher's name decides which wide rows it looks at first."""
    assert rendezvous.own_name() == rendezvous.own_name()
    names = {Doorbell(lambda _: None, LOCAL, lambda: 0).name for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith(rendezvous.own_name()) for name in names)


def test_a_process_that_may_start_no_thread_sends_and_receives(store, monkeypatch, caplog):
    """A thread limit or a shutdown must not make an acknowledged send fail."""

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    with Client(store, notify=LOCAL) as client:
        queue = client.create_queue("orders")
        monkeypatch.setattr("cqueue.doorbell.doorbell.Thread.start", refuse)
        queue.send(b"x")
        with queue.consumer() as consumer:
            assert [message.body for message in consumer.receive()] == [b"x"]
    assert sum("doorbell_off" in record.message for record in caplog.records) == 1


def test_a_sender_whose_thread_could_not_start_rings_once_it_can(monkeypatch):
    """The system may be short of threads for a moment only."""
    asked, start = threading.Event(), threading.Thread.start

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    doorbell = Doorbell(lambda _: asked.set() or {}, LOCAL, lambda: 0)
    monkeypatch.setattr("cqueue.doorbell.doorbell.Thread.start", refuse)
    doorbell.ring(Target("orders@1", b"p"))
    monkeypatch.setattr("cqueue.doorbell.doorbell.Thread.start", start)
    doorbell.ring(Target("orders@1", b"p"))
    assert asked.wait(60)
    doorbell.close()


def test_a_client_that_is_closed_while_its_address_is_looked_up_leaves_no_socket(store, monkeypatch):
    go_on, asked, own = threading.Event(), threading.Event(), Address.own

    def slow(address):
        asked.set()
        go_on.wait(SOON_S)
        return own(address)

    monkeypatch.setattr(Address, "own", slow)
    doorbell = Doorbell(store.execute, LOCAL, lambda: 0)
    doorbell.listen("orders@1", lambda *_: None)
    assert asked.wait(SOON_S)
    doorbell.close()
    go_on.set()
    doorbell._thread.join(SOON_S)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", doorbell._presence._listener.port))  # it is free


def test_a_farewell_that_fails_ends_the_thread_quietly(store, monkeypatch):
    """A failure while the client closes shows no traceback."""
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    store.trouble = lambda operation: RuntimeError("shut down") if isinstance(operation, Listen) else None
    doorbell = Doorbell(store.execute, LOCAL, lambda: 0)
    doorbell.listen("orders@1", lambda *_: None)
    assert store.seen.wait()
    doorbell.close()
    doorbell._thread.join(SOON_S)
    assert (failures, doorbell._thread.is_alive()) == ([], False)


def test_a_close_just_before_the_thread_waits_is_not_missed(store, monkeypatch):
    """The thread has seen that it is to go on, and is about to wait until its next heartbeat."""
    monkeypatch.setattr("cqueue.doorbell.presence.HEARTBEAT_S", 3600.0)
    asked, answered, about_to_wait = (threading.Event() for _ in range(3))

    def answer_late(operation):
        if isinstance(operation, Listen):
            asked.set()
            assert answered.wait(SOON_S)

    class Told(threading.Condition):
        def __enter__(self):
            if asked.is_set() and threading.current_thread() is doorbell._thread:
                about_to_wait.set()
            return super().__enter__()

    store.trouble = answer_late
    doorbell = Doorbell(store.execute, LOCAL, lambda: 0)
    doorbell._changed = Told()
    doorbell.listen("orders@1", lambda *_: None)
    assert asked.wait(SOON_S)
    with doorbell._changed:
        answered.set()
        assert about_to_wait.wait(SOON_S)
        doorbell.close()
    doorbell._thread.join(SOON_S)
    assert not doorbell._thread.is_alive()


def test_ctrl_c_at_any_moment_of_a_ring_leaves_one_thread_that_goes_on():
    """Rings of other threads wait for nobody, and the directory is read."""
    doorbell, asked = None, []

    def ask(operation):
        asked.append((threading.current_thread(), operation))
        return {}

    def begin():
        nonlocal doorbell
        doorbell = Doorbell(ask, LOCAL, lambda: 0)
        asked.clear()

    def check():
        on_a_thread(lambda: doorbell.ring(Target("orders@1", b"p")))
        on_a_thread(lambda: doorbell.listen("orders@1", lambda *_: None))
        until(lambda: {ReadDigests, Listen} <= {type(operation) for _, operation in asked})
        assert len({thread for thread, _ in asked}) == 1
        on_a_thread(doorbell.close)
        begin()

    begin()
    assert at_each_moment(lambda: doorbell.ring(Target("orders@1", b"p")), check) > 10
    doorbell.close()


# ── No socket is left open ──


def test_two_threads_that_ring_first_share_a_socket(monkeypatch):
    """A second socket would be left open until garbage collection."""
    made = []

    class Slow(socket.socket):
        def setblocking(self, *args):
            made.append(self)
            until(lambda: len(lock.by) > 1 or len(made) > 1)  # the other thread has come
            super().setblocking(*args)

    monkeypatch.setattr("cqueue.doorbell.sender.socket.socket", Slow)
    sender = Sender(HintCounts(), lambda *_: None)
    sender._mutex = lock = Wanted(sender._mutex)
    threads = [threading.Thread(target=sender.send, args=(RING, [row("a", "q@1")])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sender.close()
    assert [each.fileno() for each in made] == [-1]


def test_a_ring_that_comes_after_the_close_opens_no_socket(monkeypatch):
    """The doorbell's thread may outlive `close`, which waits only briefly, and must fail silently."""
    counts, logged = HintCounts(), []
    sender = Sender(counts, lambda *told: logged.append(told))
    sender.close()
    monkeypatch.setattr("cqueue.doorbell.sender.socket.socket", None)
    sender.send(RING, [row("a", "q@1")])
    assert (counts.sent, counts.unsent) == (0, 1)
    assert logged == []


def test_a_listener_whose_thread_cannot_be_started_leaves_no_socket(monkeypatch):
    made = []

    def bound(host, ports):
        made.append(_bound(host, ports))
        return made[0]

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("cqueue.doorbell.listener._bound", bound)
    monkeypatch.setattr("cqueue.doorbell.listener.Thread.start", refuse)
    with pytest.raises(RuntimeError):
        Listener(LOCAL, lambda _: None, HintCounts())
    assert [each.fileno() for each in made] == [-1]


def test_of_several_consumers_the_one_that_looks_there_first_is_told():
    wakeups, woken = Wakeups(), []
    for number in range(3):
        sleeper = HintInbox(partial(woken.append, number))
        sleeper.share = lambda wide_row, number=number: wide_row.shard % 3 == number
        wakeups.join(sleeper, "q")

    for shard in (1, 2, 4, 0):
        wakeups.ring(Hint(WideRow("q", 1, shard), frozenset({5})))

    assert woken == [1, 2, 1, 0]


@pytest.mark.parametrize("bell", [None, SimpleNamespace(listen=lambda *_: None, ring=lambda *_: False)])
def test_a_hint_goes_to_a_consumer_here_or_to_another_process(bell):
    wakeups, inbox, hint = Wakeups(bell), HintInbox(), Hint(WideRow("q", 1, 1), frozenset({5}))
    wakeups.join(inbox, "q")
    with capture_logs() as said:
        wakeups.ring(hint)
    assert list(inbox.hints) == ([hint] if bell is None else [])
    if bell is None:
        wakeups.pass_on()
        assert inbox.hints
    assert not said


def test_a_wide_row_that_no_consumer_looks_at_first_is_told_to_one_of_them():
    wakeups, woken = Wakeups(), []
    other = HintInbox(partial(woken.append, "told"))
    other.share = lambda _wide_row: False
    wakeups.join(other, "q")

    wakeups.ring(Hint(WideRow("q", 1, 1), frozenset({5})))

    assert woken == ["told"]


def test_a_ctrl_c_in_its_first_poll_leaves_no_consumer_deaf_to_other_processes():
    """The next poll does what is left."""
    heard = []
    bell = SimpleNamespace(listen=lambda name, _: heard.append(name))
    wakeups, inbox = [Wakeups(bell)], HintInbox()

    def join():
        wakeups[-1].join(inbox, "q@1")

    def check():
        join()
        assert set(heard) == {"q@1"}
        heard.clear()
        wakeups.append(Wakeups(bell))

    assert at_each_moment(join, check) > 1
