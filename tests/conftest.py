"""Fixtures come from plugins `fix_*.py`, one a subject, found by their names."""

from pathlib import Path

pytest_plugins = [f"tests.{path.stem}" for path in sorted(Path(__file__).parent.glob("fix_*.py"))]
