"""Which messages a process is handling, in memory that outlives the process.

A killed process can report nothing, and its last report, up to a second old, does not say what it was
handling. So parent and child share memory: the child writes each message that it begins and erases it at the
end, and the parent reads the memory when the child has died. Of a message only the id and the attempt are
written.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Any, Final

from cqueue.dispatcher.execution.middleware import Middleware

if TYPE_CHECKING:
    from cqueue.consumer import ReceivedMessage
    from cqueue.dispatcher.execution.context import Context

SLOTS: Final = 1024
"""Runs that are recorded at the same time; further coroutines run unrecorded."""
SIZE: Final = 512
"""Bytes of a slot. Two hold the length of the text; a longer text is cut in the task's name."""


def shared_file() -> int:
    """Open a new file for one child, in memory where the system can; the caller closes its number."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("cqueue-running")
    else:  # pragma: no cover - not on Linux
        with tempfile.TemporaryFile() as file:
            number = os.dup(file.fileno())
    os.truncate(number, SLOTS * SIZE)
    return number


class RunRecorder(Middleware):
    """Records what runs, in the child. Thread-safe: each run has a slot of its own."""

    def __init__(self, number: int) -> None:
        self._memory = mmap.mmap(number, SLOTS * SIZE)
        os.close(number)
        self._free = list(range(SLOTS))
        self._taken: dict[int, int] = {}

    def before_run(self, message: ReceivedMessage, context: Context) -> None:
        """Record the run, if a slot is free."""
        try:
            slot = self._free.pop()
        except IndexError:
            return
        self._taken[id(context)] = slot
        told = f"{message.id}\0{message.attempt}\0{context.queue}\0{context.task}"
        text = told.encode(errors="replace")[: SIZE - 2]
        begin = slot * SIZE
        self._memory[begin + 2 : begin + 2 + len(text)] = text
        # The length is written last, so that no half-written text is read.
        self._memory[begin : begin + 2] = len(text).to_bytes(2)

    def after_run(
        self, message: ReceivedMessage, context: Context, answer: Any, error: BaseException | None
    ) -> None:
        """Erase the run."""
        slot = self._taken.pop(id(context), None)
        if slot is not None:
            self._memory[slot * SIZE : slot * SIZE + 2] = bytes(2)
            self._free.append(slot)


def unfinished_runs(number: int) -> list[dict[str, Any]]:
    """Return what the process was handling when it died, as fields for log lines."""
    with mmap.mmap(number, SLOTS * SIZE, access=mmap.ACCESS_READ) as memory:
        used = [(begin, int.from_bytes(memory[begin : begin + 2])) for begin in range(0, SLOTS * SIZE, SIZE)]
        texts = [memory[begin + 2 : begin + 2 + length] for begin, length in used if length]
    runs = [text.decode(errors="ignore").split("\0", 3) for text in texts]
    return [{"task": run[3], "message_id": run[0], "attempt": int(run[1]), "queue": run[2]} for run in runs]
