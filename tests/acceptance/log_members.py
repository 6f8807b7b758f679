"""Members and writers of a log that are killed and stopped at random, and a judge of what they wrote down."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.acceptance.journals import whole_lines

CHILD = Path(__file__).with_name("log_child.py")
PATIENCE_S = 120


class Line(NamedTuple):
    """What a process wrote down. at: a position; body: of a record."""

    ns: int
    who: int
    what: str
    partition: int = 0
    at: int = 0
    body: str = ""


class Child:
    """One process and its journal."""

    def __init__(self, role, url, log, directory, number):
        self.role, self.number, self.kind = role.removeprefix("early-"), number, role
        self.journal = directory / f"{role}-{number}"
        command = [sys.executable, str(CHILD), role, url, log, str(self.journal)]
        self.process = subprocess.Popen(command)
        self.resume_s = 0.0

    @property
    def has_begun(self):
        return self.journal.exists() and self.journal.stat().st_size > 0

    def lines(self):
        for line in whole_lines(self.journal):
            ns, what, *rest = line.split()
            if what == "acked":
                yield Line(int(ns), self.number, what, body=rest[0])
            else:
                yield Line(int(ns), self.number, what, int(rest[0]), int(rest[1]), *rest[2:])


class Crowd:
    """Some members and writers; a killed one is replaced."""

    def __init__(self, url, log, directory, seed):
        self._where = (url, log, directory)
        self._rng = Random(seed)
        self.all = []
        self.running = []
        self.acts = Counter()

    def add(self, role):
        """early-member: one with low latency."""
        child = Child(role, *self._where, len(self.all))
        self.all.append(child)
        self.running.append(child)

    def disturb(self, seconds, enough=lambda: True):
        """Kill, stop, resume and end children for some seconds; longer, if that was not `enough`."""
        end_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s or (now_s < end_s + PATIENCE_S and not enough()):
            time.sleep(self._rng.uniform(0.3, 1.5))
            self._resume(time.monotonic())
            awake = [child for child in self.running if child.has_begun and not child.resume_s]
            if awake:
                self._act(self._rng.choice(awake))
        self._resume(float("inf"))

    def _act(self, child):
        act = self._rng.choice(("stop", "stop", "kill", "end"))
        if act == "end" and child.role == "writer":
            act = "kill"
        self.acts[f"{child.role} {act}"] += 1
        if act == "stop":
            child.process.send_signal(signal.SIGSTOP)
            child.resume_s = time.monotonic() + self._rng.choice((0.5, 2, 4, 8))
            return
        child.process.send_signal(signal.SIGKILL if act == "kill" else signal.SIGTERM)
        self.running.remove(child)
        self.add(child.kind)

    def _resume(self, now_s):
        for child in self.running:
            if child.resume_s and child.resume_s <= now_s:
                child.process.send_signal(signal.SIGCONT)
                child.resume_s = 0.0

    def end(self, role):
        """Kill all of one kind."""
        for child in [child for child in self.all if child.role == role]:
            child.process.kill()
            child.process.wait()
        self.running = [child for child in self.running if child.role != role]

    def lines(self, role):
        return sorted(line for child in self.all if child.role == role for line in child.lines())


@contextmanager
def crowd(url, log, directory, *, members, writers, seed, kind="member"):
    """Nobody is left when it is over."""
    people = Crowd(url, log, directory, seed)
    try:
        for role, count in ((kind, members), ("writer", writers)):
            for _ in range(count):
                people.add(role)
        yield people
    finally:
        people.end("member")
        people.end("writer")


def wait_for_work(people):
    """All have begun: the machine may be slow to start them."""
    deadline = time.monotonic() + PATIENCE_S
    while not all(child.has_begun for child in people.running):
        assert time.monotonic() < deadline, "they do not begin"
        time.sleep(0.2)


def wait_until_done(people):
    """Until every acknowledged record has been handled; seconds that took."""
    acked, began = {line.body for line in people.lines("writer")}, time.monotonic()
    while True:
        missing = acked - {line.body for line in people.lines("member")}
        if not missing:
            return time.monotonic() - began
        assert time.monotonic() < began + PATIENCE_S, f"{len(missing)} of {len(acked)} missed"
        time.sleep(0.5)


class Verdict(NamedTuple):
    acked: int
    handled: int
    twice: int
    stretches: int
    overlaps: int


def judge(people, *, early=False):
    """0 missed, order kept, and every repeat explained. early: each once in a stretch, in whatever order."""
    acked = {line.body for line in people.lines("writer")}
    done = [line for line in people.lines("member") if line.what == "done"]
    assert acked <= {line.body for line in done}, "missed"
    places = {(line.body, line.at) for line in done}
    copies = Counter(body for body, _ in places)
    by_partition = defaultdict(list)
    for line in people.lines("member"):
        by_partition[line.partition].append(line)
    once = {body for body in acked if copies[body] == 1}  # not made again under a second id
    found = [_judge_partition(lines, once, early=early) for lines in by_partition.values()]
    handled = len({line.at for line in done})
    return Verdict(
        len(acked), handled, len(done) - handled, sum(n for n, _ in found), sum(n for _, n in found)
    )


class Stretch:
    """One member's time with a partition."""

    def __init__(self, acquired):
        self.acquired = acquired
        self.done = []


def _judge_partition(lines, acked, *, early):
    """How many stretches there were, and how many records were in hand when another took over."""
    stretches, holding, stored, overlaps = [], {}, [], Counter()
    for line in lines:
        if line.what == "acquired":
            holding[line.who] = Stretch(line)
            stretches.append(holding[line.who])
        elif line.what == "done":
            stretch = holding[line.who]
            stretch.done.append(line)
            if any(each.acquired.ns > stretch.acquired.ns and each.done for each in stretches):
                overlaps[id(stretch)] += 1
        elif line.what in ("checkpoint", "released"):
            stored.append(line)
    used = [stretch for stretch in stretches if stretch.done]
    must = sorted({line.at for line in lines if line.what == "done" and line.body in acked})
    for stretch in used:
        if early:
            places = [line.at for line in stretch.done]
            assert len(set(places)) == len(places), "twice by one owner"
            assert min(places) > stretch.acquired.at, "what was written down was done again"
        else:
            _judge_stretch(stretch, must, stored)
    assert all(count <= 1 for count in overlaps.values()), "one that had lost the partition went on reading"
    return len(used), sum(overlaps.values())


def _judge_stretch(stretch, must, stored):
    """In order, without a gap, from a position that is not before what had been written down."""
    places = [line.at for line in stretch.done]
    first = stretch.acquired.at
    assert all(a < b for a, b in zip([first, *places], places, strict=False)), "out of order"
    assert [at for at in must if first < at <= places[-1]] == [at for at in places if at in set(must)], (
        "a gap"
    )
    earlier = [line.at for line in stored if line.ns < stretch.acquired.ns]
    assert not earlier or first >= max(earlier), "what was written down was done again"
