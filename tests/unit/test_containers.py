"""What a container of the official image is told, by docker-compose.yml and by `--cassandra=docker`.

No engine runs here. The script of both is run as a container would run it, on the lines of the image's
cassandra.yaml that it is about.
"""

import os
import re
import subprocess

import pytest

from tests.fix_cassandra import ENTRY_POINT, IMAGE, new_container
from tests.unit import markdown_pages as markdown

# As Cassandra 5.0 ships them, and what a careless edit would hit.
SHIPPED = """\
cluster_name: 'Test Cluster'
# commitlog_sync may be either "periodic", "group", or "batch."
commitlog_sync: periodic
commitlog_sync_period: 10000ms
# periodic_commitlog_sync_lag_block:
commitlog_segment_size: 32MiB
commitlog_disk_access_mode: legacy
#   - seeds: "<ip1>,<ip2>,<ip3>"
      - seeds: "127.0.0.1:7000"
# paxos_variant: v1
"""


@pytest.fixture
def configured(tmp_path):
    """A function: run the script as a container starts; what it hands on, and the settings that it leaves."""
    yaml, tools = tmp_path / "cassandra.yaml", tmp_path / "bin"
    yaml.write_text(
        SHIPPED.rstrip("\n"), encoding="utf-8"
    )  # a last line without an end must not swallow ours
    tools.mkdir()
    own = tools / "docker-entrypoint.sh"
    own.write_text('#!/bin/bash\necho "$@"\n', encoding="utf-8")
    own.chmod(0o755)
    environ = {"CASSANDRA_CONF": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"}

    def run(*command):
        said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        settings = re.findall(r"^(\w+): *(.*)$", yaml.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(dict(settings)) == len(settings), "a setting stands there twice, which Cassandra refuses"
        return said.stdout.split(), dict(settings)

    return run


@pytest.mark.parametrize("way", ["compose", "testcontainers"])
def test_a_container_has_the_settings_that_cqueue_needs(configured, monkeypatch, way):
    """At its first start and at every other one; then the image's own entry point runs."""
    command = ["bash", ENTRY_POINT] if way == "compose" else asked_of_engine(monkeypatch)
    for _ in range(2):
        started, settings = configured(*command)
        assert started == ["cassandra", "-f"]
        assert settings == {
            "cluster_name": "'Test Cluster'",
            "commitlog_segment_size": "32MiB",
            "commitlog_sync": "batch",
            "commitlog_disk_access_mode": "auto",
            "memtable_allocation_type": "offheap_objects",
            "paxos_variant": "v2",
        }


def asked_of_engine(monkeypatch):
    """The entry point that testcontainers asks an engine for."""
    monkeypatch.setattr("testcontainers.core.container.DockerClient", lambda **_: None)
    container = new_container()
    assert container.image.endswith(IMAGE)
    return container._kwargs["entrypoint"]


def test_compose_runs_the_same_script_on_each_node():
    """It is mounted where the entry point looks for it."""
    text = (markdown.ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    (place,) = re.findall(r'entrypoint: \["bash", "(.*)"\]', text)
    assert place == f"/docker/{ENTRY_POINT.name}"
    assert text.count("<<: *cassandra") == text.count('"./docker:/docker:ro"') == 3
    assert f"image: {IMAGE}" in text
    assert ENTRY_POINT.parent.name == "docker"
