"""Fixtures come from plugins `fix_*.py`, one a subject, found by their names."""

import signal
from pathlib import Path

from hypothesis import Phase, settings

# Without the phase that traces every line to explain a failure: under Python 3.11 its trace function and
# Hypothesis' own callback of the garbage collector can meet, and then the interpreter never comes back.
settings.register_profile("cqueue", phases=[phase for phase in Phase if phase is not Phase.explain])
settings.load_profile("cqueue")

# Who starts a run in the background may have it ignore signals that some tests send to what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = [f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py"))]
