"""Fixtures for pytest.

pytest loads this module in every project that has cqueue installed. So the module imports nothing of cqueue
before a test asks for a fixture: projects without such tests do not wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cqueue import App
    from cqueue.testing import Sandbox

OPTION = "cqueue_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which a project names its application."""
    parser.addini(OPTION, "module:name of the cqueue.App that the fixture cqueue_sandbox puts in memory")


@pytest.fixture
def cqueue_app(request: pytest.FixtureRequest) -> App:
    """Return the application that the option `cqueue_app` names, such as `shop.tasks:app`.

    A project may define its own fixture of this name instead.
    """
    from cqueue import App  # noqa: PLC0415 - see above
    from cqueue.dispatcher.application.import_string import TargetError, load  # noqa: PLC0415

    target = request.config.getini(OPTION)
    if not target:
        pytest.fail(
            f"which application? Set {OPTION} = module:name in the configuration of pytest, "
            f"or define a fixture {OPTION} that returns the cqueue.App",
            pytrace=False,
        )
    try:
        found = load(target)
    except TargetError as exc:
        pytest.fail(f"{OPTION} = {target}: {exc}", pytrace=False)
    if not isinstance(found, App):
        pytest.fail(f"{OPTION} = {target} names a {type(found).__name__}, not a cqueue.App", pytrace=False)
    return found


@pytest.fixture
def cqueue_sandbox(cqueue_app: App) -> Iterator[Sandbox]:
    """Run the application in memory for the duration of a test; see `cqueue.App.testing`."""
    with cqueue_app.testing() as sandbox:
        yield sandbox
