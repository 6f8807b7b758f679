"""A lock, or a condition, that tells who has come to it: no test has to guess how long that takes."""

import threading


class Wanted:
    """Stands in the place of a lock.

    Attributes:
        by: the threads that came to take it, in order, as each comes.
        waiting: the threads that came to wait for the condition.
    """

    def __init__(self, lock):
        self._lock = lock
        self.by = []
        self.waiting = []

    def __enter__(self):
        self.by.append(threading.current_thread())
        return self._lock.__enter__()

    def __exit__(self, *error):
        return self._lock.__exit__(*error)

    def wait(self, *args):
        self.waiting.append(threading.current_thread())
        return self._lock.wait(*args)

    def __getattr__(self, name):
        return getattr(self._lock, name)
