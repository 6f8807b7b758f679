"""The page about the command line is complete, and the command line starts quickly."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cqueue.cli.failures import ExitCode
from cqueue.cli.groups import ENTRIES
from cqueue.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def commands(entry):
    """Every command of an entry by its full name."""
    loaded = entry.load()
    parts = getattr(loaded, "commands", {"": loaded})
    return {f"cqueue {entry.name} {name}".strip(): command for name, command in parts.items()}


def options(command):
    return {
        option
        for param in command.params
        if not getattr(param, "hidden", False)  # taken only to say why it is refused
        for option in (*param.opts, *param.secondary_opts)
        if option.startswith("-")
    }


def section(group):
    """What stands under `## cqueue GROUP`, to the next heading of that rank."""
    _, _, rest = PAGE.partition(f"\n## `cqueue {group}`\n")
    return rest.partition("\n## ")[0]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_command_and_option_stands_in_the_page(entry):
    """Under its group's heading; --json is explained once for all."""
    text = section(entry.name)
    assert text, f"docs/reference/cli.md has no section for `cqueue {entry.name}`"
    for name, command in commands(entry).items():
        assert name == f"cqueue {entry.name}" or f"### `{name}`\n" in text
        assert "--json" in options(command)
        missing = {option for option in options(command) - {"--json"} if f"`{option}" not in text}
        assert not missing, f"docs/reference/cli.md does not describe {missing} of `{name}`"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_paragraphs_of_a_help_text_have_no_line_ends(entry):
    """The terminal breaks them: a line end of the source would leave ragged lines at any other width."""
    for name, command in commands(entry).items():
        ragged = re.findall(r".*\S\n\S.*", command.help or "")
        assert command.help, name
        assert not ragged, f"{name}: {ragged}"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_arguments_have_one_pair_of_brackets(entry):
    """Typer writes the brackets and dots of a usage line itself: `[ID]...`, not `[[ID…]]...`."""
    for name, command in commands(entry).items():
        usage = command.get_usage(typer.Context(command, info_name=name))
        assert not re.search(r"\[\[|…", usage), usage


def test_global_options_stand_in_the_page():
    own = {option for option in options(typer.main.get_command(app)) if not option.endswith("-completion")}
    assert all(f"`{option}" in PAGE for option in own)


def test_every_exit_code_stands_in_the_page():
    assert all(f"\n| {int(code)} | " in PAGE for code in ExitCode)


def test_help_imports_no_driver():
    """`cqueue --help` and `cqueue GROUP --help` stay quick: what takes long is imported inside commands."""
    code = """if True:
        import sys
        from cqueue.cli.main import main
        for name in ["", *sys.argv[1:]]:
            main([*name.split(), "--help"])
            if "cassandra" in sys.modules:
                sys.exit(f"`cqueue {name} --help` imports the driver")
    """
    names = [entry.name for entry in ENTRIES]
    command = [sys.executable, "-W", "error", "-c", code, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"cqueue {name} " in done.stdout for name in names)
    assert done.stdout.count("--install-completion") == 1, "completion belongs to `cqueue` itself"
