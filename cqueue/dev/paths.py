"""Directories of `cqueue dev` for jars and data, following the XDG base directories.

An empty `HOME` or `XDG_*` counts as unset (the XDG specification says so, and containers often set
them empty); then everything goes to `.cqueue` in the working directory, never to the root directory.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

# Certificates of a cluster, below its directory; they go with the first node.
TLS = "node1/tls"
AUTHORITY = "ca.pem"
CLIENT = "client.pem"
NODE = "node.pem"  # below each node's directory


def cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of files that can be fetched again: `$XDG_CACHE_HOME/cqueue`."""
    return _root(environ, "XDG_CACHE_HOME", ".cache")


def default_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of the nodes if `--dir` is not given: `$XDG_DATA_HOME/cqueue/dev`."""
    return _root(environ, "XDG_DATA_HOME", ".local/share") / "dev"


def command(what: str, directory: Path) -> str:
    """Return the command of `cqueue dev` that does this to the cluster of a directory, for people to run."""
    is_default = directory == default_directory().expanduser().resolve()
    return f"`cqueue dev {what}{'' if is_default else f' --dir {shlex.quote(str(directory))}'}`"


def node_home(directory: Path, number: int) -> Path:
    """Return the directory of node `number` (from 1), which everything of this node is below."""
    return directory / f"node{number}"


def _root(environ: Mapping[str, str] | None, variable: str, below_home: str) -> Path:
    environ = os.environ if environ is None else environ
    named = environ.get(variable, "")
    # The XDG specification ignores relative paths: they would mean another place in each directory.
    if named and Path(named).is_absolute():
        return Path(named) / "cqueue"
    home = environ.get("HOME", "")
    if home and Path(home).is_absolute():
        return Path(home) / below_home / "cqueue"
    return Path.cwd() / ".cqueue"
