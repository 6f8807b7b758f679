"""What a node is told: its cassandra.yaml and the command line of its JVM."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from cqueue.dev import jvm
from cqueue.dev.settings import Settings, cassandra_yaml, default_heap, initial_token
from cqueue.errors import ConfigError, DevError

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
JARS = [Path("/jars/guava.jar"), Path("/jars/jamm-0.4.0.jar")]


def yaml_of(settings, index=0):
    where = {"addresses": ADDRESSES, "directory": Path("/dev"), "index": index}
    text = cassandra_yaml(settings, cluster_name="name", **where)
    return {name: json.loads(value) for name, value in (line.split(": ", 1) for line in text.splitlines())}


def test_writes_are_synced_before_they_are_acknowledged():
    """Unless asked otherwise, no acknowledged write can be lost by killing a node."""
    values = yaml_of(Settings(nodes=3))
    assert values["commitlog_sync"] == "batch"
    assert "commitlog_sync_period" not in values, "Cassandra refuses it beside batch"
    assert values["paxos_variant"] == "v2"


def test_periodic_sync_has_its_period():
    """`periodic` is complete: Cassandra refuses it without a period."""
    values = yaml_of(Settings(commitlog_sync="periodic"))
    assert values["commitlog_sync"] == "periodic"
    assert values["commitlog_sync_period"] == "10000ms"


def test_a_guarded_cluster_asks_for_passwords_and_encryption():
    """Unless the maker overrides how; certificates of clients make no sense without encryption."""
    assert "authorizer" not in yaml_of(Settings())
    assert yaml_of(Settings(auth=True))["authorizer"] == "CassandraAuthorizer"
    encrypted = yaml_of(Settings(tls=True), index=1)["client_encryption_options"]
    assert encrypted["optional"] is False
    assert (encrypted["keystore"], encrypted["truststore"]) == (
        "/dev/node2/node.pem",
        "/dev/node1/tls/ca.pem",
    )
    assert "client_encryption_options" not in yaml_of(Settings())
    overridden = Settings(tls=True, yaml={"client_encryption_options": {}})
    assert yaml_of(overridden)["client_encryption_options"] == {}
    with pytest.raises(ConfigError, match="needs tls"):
        Settings(client_certificates=True)


def test_each_node_knows_itself_and_all_others():
    """A node listens on its own address only, and any other node is enough to find the ring."""
    values = yaml_of(Settings(nodes=3), index=1)
    assert values["listen_address"] == values["rpc_address"] == "127.0.0.2"
    assert values["seed_provider"][0]["parameters"] == [{"seeds": "127.0.0.1,127.0.0.2,127.0.0.3"}]
    assert values["auto_bootstrap"] is False


@pytest.mark.parametrize("nodes", range(1, 10))
def test_tokens_cut_the_ring_into_equal_parts(nodes):
    """Nodes that start at the same moment never want the same token, nor the reserved smallest one."""
    tokens = [initial_token(index, nodes) for index in range(nodes)]
    assert len(set(tokens)) == nodes
    assert all(-(2**63) < token < 2**63 for token in tokens)
    assert {b - a for a, b in pairwise(tokens)} <= {2**64 // nodes}


def test_overrides_win():
    """Fault tests can set anything that cassandra.yaml knows."""
    values = yaml_of(Settings(yaml={"tombstone_warn_threshold": 10, "max_hint_window": "1m"}))
    assert values["tombstone_warn_threshold"] == 10
    assert values["max_hint_window"] == "1m"
    assert yaml_of(Settings())["tombstone_warn_threshold"] == 1000


def test_all_data_is_below_the_nodes_directory():
    """`wipe` finds everything, whatever is overridden."""
    settings = Settings(yaml={"commitlog_directory": "/elsewhere"})
    values = yaml_of(settings, index=2)
    assert values["data_file_directories"] == ["/dev/node3/data"]
    places = {name: value for name, value in values.items() if name.endswith("_directory")}
    assert places == {
        "commitlog_directory": "/dev/node3/commitlog",
        "hints_directory": "/dev/node3/hints",
        "saved_caches_directory": "/dev/node3/saved_caches",
        "cdc_raw_directory": "/dev/node3/cdc_raw",
    }


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": 10}, "nodes"),
        ({"nodes": 3, "addresses": ["10.0.0.1"]}, "addresses"),
        ({"nodes": 3, "prefixes": [[], []]}, "prefixes"),
        ({"commitlog_sync": "never"}, "commitlog_sync"),
        ({"heap": "512"}, "heap"),
        ({"heap": "-1m"}, "heap"),
        ({"cql_port": 0}, "cql_port"),
        ({"storage_port": 70000}, "storage_port"),
        ({"cql_port": 7000}, "differ"),
    ],
)
def test_wrong_settings_are_refused_by_name(wrong, named):
    """A value out of range is reported before anything starts, with the name of the option."""
    with pytest.raises(ConfigError, match=named):
        Settings(**wrong)


def test_several_nodes_get_more_heap_each():
    """The default heap suits the number of nodes."""
    assert default_heap(1) == "512m"
    assert default_heap(3) == "640m"


def test_command_line_runs_the_real_server(tmp_path):
    """The JVM gets the server's main class, its module options, the agent it insists on, and our heap."""
    command = jvm.java_command(Path("/bin/java"), JARS, tmp_path, Settings(heap="700m"))
    assert command[0] == "/bin/java"
    assert command[-3:] == ["-cp", "/jars/guava.jar:/jars/jamm-0.4.0.jar", jvm.MAIN_CLASS]
    assert {"-Xms700m", "-Xmx700m", "-javaagent:/jars/jamm-0.4.0.jar"} <= set(command)
    assert "--add-opens=java.base/java.lang=ALL-UNNAMED" in command
    assert "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED" in command
    assert f"-Dcassandra.config=file://{tmp_path}/cassandra.yaml" in command


def test_no_management_port_is_opened(tmp_path):
    """Several nodes on one machine do not fight for one JMX port."""
    command = jvm.java_command(Path("/bin/java"), JARS, tmp_path, Settings())
    assert not [option for option in command if "jmx" in option and option.startswith("-D")]


def test_jvm_options_come_last(tmp_path):
    """The last of two contradicting options wins, so the caller's do."""
    command = jvm.java_command(Path("/bin/java"), JARS, tmp_path, Settings(jvm_options=["-Xmx1g"]))
    assert command.index("-Xmx1g") > command.index("-Xmx512m")
    assert command.index("-Xmx1g") < command.index("-cp")


def test_directory_with_spaces(tmp_path):
    """The configuration is named by a URL, so odd directory names are escaped."""
    command = jvm.java_command(Path("/bin/java"), JARS, tmp_path / "my data", Settings())
    assert any(option.endswith("/my%20data/cassandra.yaml") for option in command)


def test_jars_without_the_agent(tmp_path):
    """A broken set of jars is reported with what to do, not by a server that does not start."""
    with pytest.raises(DevError, match="cqueue dev jars"):
        jvm.java_command(Path("/bin/java"), JARS[:1], tmp_path, Settings())


def test_environment_bounds_native_memory():
    """The arenas of glibc are bounded as the real start script does it, unless the user has a wish."""
    assert jvm.java_environment({"A": "1"}) == {"A": "1", "MALLOC_ARENA_MAX": "4"}
    assert jvm.java_environment({"MALLOC_ARENA_MAX": "2"})["MALLOC_ARENA_MAX"] == "2"
