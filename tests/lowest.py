"""Print the lowest versions that setup.cfg allows, as constraints for pip: python -m tests.lowest

Packages of an extra that is not installed are in no one's way there. What the packages themselves need is
chosen by pip.
"""

import configparser
import re
import sys
from pathlib import Path

SETUP = Path(__file__).resolve().parent.parent / "setup.cfg"
_NEED = re.compile(r"(?P<name>[\w.-]+)(\[[\w,-]+\])? *>=(?P<lowest>[\w.]+)")
NOT_FOR = ("spark", "lint")
"""Extras with an environment of their own."""


def lowest(text: str) -> dict[str, str]:
    """The lowest version of each package that a `setup.cfg` names.

    Raises:
        ValueError: a package has no lowest version, or two.
    """
    read = configparser.ConfigParser()
    read.read_string(text)
    extras = read["options.extras_require"]
    lists = [read["options"]["install_requires"], *(extras[name] for name in extras if name not in NOT_FOR)]
    found: dict[str, str] = {}
    for line in filter(None, "\n".join(lists).splitlines()):
        need = _NEED.match(line)
        if need is None or found.setdefault(need["name"], need["lowest"]) != need["lowest"]:
            raise ValueError(f"no lowest version, or two: {line}")
    return found


def main() -> None:
    """Print them."""
    needs = lowest(SETUP.read_text(encoding="utf-8"))
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in sorted(needs.items()))


if __name__ == "__main__":
    main()
