"""The messages that the demo sends, and those that its handler refuses."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

FLAKY_EVERY = 100
FLAKY_FAILURES = 2
POISON = 5


@dataclass(frozen=True, slots=True)
class Input:
    """Messages 1 to `size`: the lines of a file, each with its number in front.

    Attributes:
        lines: what is sent, over and over if there are fewer than `size`.
        size: how many messages.
        poison: numbers whose handling always fails.
    """

    lines: tuple[str, ...]
    size: int
    poison: frozenset[int]

    @classmethod
    def of_size(cls, size: int) -> Input:
        """Make `size` messages from the text that comes with the package; a handful always fail."""
        text = files("cqueue.cli").joinpath("demo.txt").read_text(encoding="utf-8")
        count = min(POISON, max(1, size // 20))
        poison = frozenset(max(1, size * (2 * part + 1) // (2 * count)) for part in range(count))
        return cls(tuple(text.splitlines()), size, poison)

    def body(self, number: int) -> bytes:
        """Return the body of the message with this number."""
        return f"{number} {self.lines[(number - 1) % len(self.lines)]}".encode()

    def number_of(self, body: bytes) -> int | None:
        """Return the number in a body; None if the body is not exactly what was sent."""
        digits, _, _ = body.partition(b" ")
        number = int(digits) if digits.isdigit() else 0
        return number if 1 <= number <= self.size and body == self.body(number) else None

    def fails(self, number: int, attempt: int) -> bool:
        """Return whether handling fails: always, or twice for one in a hundred, otherwise never."""
        if number in self.poison:
            return True
        return number % FLAKY_EVERY == FLAKY_EVERY // 2 and attempt <= FLAKY_FAILURES
