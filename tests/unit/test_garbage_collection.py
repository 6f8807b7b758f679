"""The garbage collector of our own processes: tried in processes of their own, as it is one for each."""

import subprocess
import sys

import pytest


def run(script):
    """What it prints."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_what_there_is_already_is_not_looked_at_again():
    """And garbage that there is by then is collected first."""
    frozen, left = run(
        "import gc, weakref\n"
        "from cqueue.runtime import process\n"
        "class Cycle: pass\n"
        "one = Cycle(); one.me = one; seen = weakref.ref(one); del one\n"
        "process.settle_garbage()\n"
        "print(gc.get_freeze_count() > 1000, seen())"
    )
    assert (frozen, left) == ("True", "None")


@pytest.mark.parametrize(("own", "expected"), [("", "10000"), ("gc.set_threshold(123, 4, 5)", "123")])
def test_new_objects_are_looked_at_less_often_unless_the_application_has_its_own_way(own, expected):
    (young,) = run(
        "import gc\n"
        "from cqueue.runtime import process\n"
        f"{own}\nprocess.settle_garbage()\nprint(gc.get_threshold()[0])"
    )
    assert young == expected


def test_what_a_vain_attempt_left_is_collected():
    """A daemon that cannot start yet tries again."""
    (left,) = run(
        "import gc, weakref\n"
        "from cqueue.runtime import process\n"
        "class Cycle: pass\n"
        "one = Cycle(); one.me = one; seen = weakref.ref(one)\n"
        "process.settle_garbage(); del one; process.settle_garbage()\n"
        "print(seen())"
    )
    assert left == "None"


def test_cycles_are_found_all_the_same():
    (found,) = run(
        "import gc, weakref\n"
        "from cqueue.runtime import process\n"
        "process.settle_garbage()\n"
        "class Cycle: pass\n"
        "one = Cycle(); one.me = one; seen = weakref.ref(one); del one\n"
        "keep = [[] for _ in range(process.YOUNG)]\n"
        "print(seen())"
    )
    assert found == "None"
