"""Fixtures come from plugins `fix_*.py`, one a subject, found by their names."""

import gc
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# A shell that starts a run in the background may have it ignore signals; some tests send them to children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No example has a limit of time: a starved machine would fail it. `make check` and `make test` try each
# property with a quarter of the examples.
settings.register_profile("all", max_examples=100, deadline=None)
settings.register_profile("check", max_examples=25, deadline=None)
settings.load_profile("all")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """The garbage collector need not look at thousands of tests while they are collected, nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


pytest_plugins = [f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py"))]
