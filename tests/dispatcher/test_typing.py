"""Type checkers find a wrong argument of a task before it runs: both of them, and nothing else."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "typing" / "tasks.py"
IGNORE = re.compile(r"  # type: ignore\[[^]]*\]")


@pytest.fixture
def bare(tmp_path):
    """The file of right and wrong calls, without what lets the wrong ones pass."""
    path = tmp_path / "bare_tasks.py"
    path.write_text(IGNORE.sub("", FILE.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def wrong_lines():
    """Where the wrong calls stand."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {number: line.strip() for number, line in enumerate(lines, 1) if IGNORE.search(line)}


def _told(numbers):
    """Lines that were complained of, with their text."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {number: lines[number - 1].strip() for number in numbers}


def _mypy(path):
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return {int(number) for number in re.findall(rf"{path.name}:(\d+): error", done.stdout)}


@pytest.mark.slow
def test_mypy_finds_exactly_the_wrong_calls(bare):
    """Each of them is an error, and no right one is."""
    assert len(wrong_lines()) > 30
    assert _told(_mypy(bare)) == wrong_lines()


def _pyright(path):
    """As mypy. Its package downloads the program at the first use, and Node if there is none."""
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed; it is in the extra `lint`")
    settings = {"extraPaths": [str(ROOT)], "include": ["."], "pythonVersion": "3.11"}
    (path.parent / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(path.parent)]
    try:
        done = subprocess.run(
            [*command, "--pythonpath", sys.executable],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        report = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as exc:
        pytest.skip(f"pyright does not start here: {type(exc).__name__}")
    assert report["summary"]["filesAnalyzed"] == 1
    return {found["range"]["start"]["line"] + 1 for found in report["generalDiagnostics"]}


@pytest.mark.slow
@pytest.mark.acceptance
def test_pyright_finds_exactly_the_wrong_calls(bare):
    """The same lines, by rules of its own."""
    assert _told(_pyright(bare)) == wrong_lines()
