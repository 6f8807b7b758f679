"""The application of daemons in tests: copied to where they run, and imported there as `work`.

Handlers write lines of time, process, what and number to a journal, each with one call of the system.
"""

import os
import signal
import time
from datetime import timedelta

import cqueue

app = cqueue.App()


def note(*words):
    line = " ".join(map(str, (time.time(), os.getpid(), *words))) + "\n"
    out = os.open("journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(out, line.encode())
    os.close(out)


@app.task(queue="quick", name="quick")
def quick(number):
    note("quick", number)


@app.task(queue="slow", name="slow")
def slow(number, seconds=0.5):
    note("began", number)
    time.sleep(seconds)
    note("slow", number)


@app.task(queue="deadly", name="deadly", retry=cqueue.Retry(max_attempts=3))
def deadly(number):
    """7 kills its process, at every attempt."""
    note("began", number)
    if number == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    note("deadly", number)


@app.task(queue="quick", name="double", result_ttl=timedelta(hours=1))
def double(number):
    note("double", number)
    if number < 0:
        raise ValueError(f"{number} is below zero")
    return {"twice": 2 * number}


@app.task(queue="slow", name="held", result_ttl=timedelta(hours=1))
def held(number):
    """Held for long by its first run, and not by the next one."""
    note("held", number)
    if cqueue.current_context().attempt == 1:
        time.sleep(600)
    return number


@app.task(queue="ticks", name="tick")
def tick():
    """The number is the second that fires."""
    note("tick", int(cqueue.current_context().firing.fired_at.timestamp()))
