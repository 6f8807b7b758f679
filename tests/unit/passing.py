"""A clock for the time limits of calls: it stands still until a test lets time pass."""

from cqueue.errors import Unavailable
from cqueue.runtime import waiting


class PassingClock:
    """The time by which calls end, in place of `time` in `cqueue.runtime.waiting`."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s

    def pass_time(self, seconds):
        self.now_s += seconds

    def hang(self, _operation):
        """Take all the time that a request may; for a store that answers nothing."""
        self.pass_time(waiting.left_s(10.0))
        return Unavailable("nobody answers")
