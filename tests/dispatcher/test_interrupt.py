"""Interrupting a handler: it alone is hit, and never the worker around it."""

import random
import subprocess
import sys
import threading
import time

import pytest

from cqueue.dispatcher.execution.interrupt import Interrupted, Interruptible


def test_a_handler_is_interrupted_where_it_is():
    """The handler's `finally` blocks run."""
    run, cleaned = Interruptible(), []
    timer = threading.Timer(0.02, run.interrupt)

    def handler():
        try:
            timer.start()
            while True:
                time.sleep(0.001)
        finally:
            cleaned.append(1)

    with pytest.raises(Interrupted):
        run.call(handler)
    assert cleaned
    assert not run.interrupt()  # once is enough


def test_a_handler_that_has_returned_is_not_interrupted():
    """An interrupt that comes too late returns False."""
    run = Interruptible()
    assert run.call(lambda: 7) == 7
    assert not run.interrupt()


def test_a_handler_may_swallow_it():
    """The value that the handler then returns counts, and no further exception comes."""
    run = Interruptible()
    timer = threading.Timer(0.02, run.interrupt)

    def handler():
        try:
            timer.start()
            while True:
                time.sleep(0.001)
        except BaseException:  # noqa: BLE001 - as a careless handler would
            return "stubborn"

    assert run.call(handler) == "stubborn"
    for _ in range(1000):
        pass


def test_what_never_began_is_not_waited_for():
    """An exception before the handler begins, such as a MemoryError, ends the call."""
    Interruptible()._end()


def test_what_it_raises_itself_is_raised():
    """The handler's own exception is raised, and ends the run."""
    run = Interruptible()
    with pytest.raises(KeyError):
        run.call({}.__getitem__, "x")
    assert not run.interrupt()


@pytest.fixture
def quick_switches():
    """Threads take turns after 10 µs, not after 5 ms: so races are decided otherwise that much more often."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.interrupted
@pytest.mark.usefixtures("quick_switches")
def test_no_interrupt_ever_leaves_the_call():
    """However the two race: the exception comes out of `call`, or nowhere."""
    escaped, inside, runs = [], [], 0
    chance = random.Random(1)
    current: list[Interruptible] = []
    over = threading.Event()

    def shoot():
        while not over.is_set():
            if current:
                current[0].interrupt()
            time.sleep(chance.random() * 2e-4)

    shooter = threading.Thread(target=shoot)
    shooter.start()
    try:
        while not escaped and len(inside) < 200:
            run = Interruptible()
            current[:] = [run]
            try:
                try:
                    run.call(sum, range(chance.randrange(1, 3000)))
                except Interrupted:
                    inside.append(1)
                runs += 1
                for _ in range(50):  # the worker's own code
                    pass
            except Interrupted:
                escaped.append(1)
    finally:
        over.set()
        shooter.join()
    assert not escaped
    assert inside
    assert runs


RACES = """
import sys, threading
from cqueue.dispatcher.execution.interrupt import Interrupted, Interruptible

for _ in range(3000):
    run = Interruptible()
    thread = threading.Thread(target=run.interrupt)
    try:
        run.call(thread.start)
    except Interrupted:
        pass
    thread.join()
sys.setprofile(lambda *_: None)
(lambda: None)()
"""


def test_the_interpreter_looks_for_no_interrupt_that_was_taken_back():
    """Under Python 3.11 a tracer would wait for it for ever; everywhere each call would be slower."""
    subprocess.run([sys.executable, "-c", RACES], check=True)
