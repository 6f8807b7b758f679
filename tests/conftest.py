"""Fixtures come from plugins `fix_*.py`, one a subject, found by their names."""

import signal
from pathlib import Path

# A shell that starts a run in the background may have it ignore signals; some tests send them to children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = [f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py"))]
