"""Work in a fork of this process, under limits, and what it had to say."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WITHIN_S = 900.0
"""Wall-clock seconds after which a fork is killed."""
MEMORY_BYTES = 3 << 30
"""What a fork may allocate: a loop that only grows ends by MemoryError."""
LOOK_EVERY_S = 0.5

Say = Callable[[Any], None]


@dataclass(slots=True)
class Told:
    """What a fork said, and how it ended.

    Attributes:
        said: its values, in order.
        is_well: it came to its end; it was not killed and raised nothing.
    """

    said: list[Any] = field(default_factory=list)
    is_well: bool = False

    @property
    def last(self) -> Any:
        """The last value, None if there is none."""
        return self.said[-1] if self.said else None


def forked(work: Callable[[Say], None]) -> Told:
    """Run `work(say)` in a fork of this process and wait for its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(work, writing)
    os.close(writing)
    text, status = _listen(reading, child)
    said = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    return Told(said, os.waitstatus_to_exitcode(status) == 0)


def limit_cpu(seconds: float) -> None:
    """Let this process end when it has used that many more seconds of the processor.

    Its time on the wall would also count what other processes take from it.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _work(work: Callable[[Say], None], writing: int) -> None:
    """In the fork; does not return."""
    code = 1
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        work(lambda value: _write(writing, value))
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must not go on with what its parent does
        _write(writing, [None, traceback.format_exc()])
    finally:
        os._exit(code)


def _write(writing: int, value: Any) -> None:
    left = json.dumps(value).encode() + b"\n"
    while left:
        left = left[os.write(writing, left) :]


def _listen(reading: int, child: int) -> tuple[bytes, int]:
    """All that a child writes until it ends or its time is over; and its exit status."""
    text, deadline_s = bytearray(), time.monotonic() + WITHIN_S
    status: int | None = None
    try:
        while True:
            if select.select([reading], [], [], 0 if status is not None else LOOK_EVERY_S)[0]:
                part = os.read(reading, 1 << 16)
                text += part
                if part:
                    continue
                return bytes(text), os.waitpid(child, 0)[1] if status is None else status
            if status is not None:  # what the child started may hold the pipe open
                return bytes(text), status
            ended, code = os.waitpid(child, os.WNOHANG)
            if ended:
                status = code
            elif time.monotonic() > deadline_s:
                os.kill(child, signal.SIGKILL)
    finally:
        os.close(reading)
