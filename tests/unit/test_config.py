"""A queue's configuration: what is accepted, what is refused and why, what is stored."""

import contextlib
import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cqueue.config import FIXED, HOUR_MS, MAX_EPOCH_ROWS, QueueConfig
from cqueue.errors import ConfigError, DamagedRow
from cqueue.log import LogConfig

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shards", 0),
        ("shards", 65),
        ("shards", True),
        ("shards", 2.0),
        ("max_shards", 0),
        ("max_shards", 1001),
        ("open_shards", 0),
        ("open_shards", 65),
        ("max_attempts", 1),
        ("max_attempts", -1),
        ("max_attempts", 1_000_001),
        ("time_shard", SECOND / 2),
        ("time_shard", 7 * SECOND),
        ("time_shard", 90 * 60 * SECOND),
        ("time_shard", timedelta(days=31)),
        ("time_shard", 30),
        ("visibility", SECOND),
        ("visibility", timedelta(hours=12, milliseconds=1)),
        ("visibility", timedelta(seconds=2, microseconds=1)),
        ("lease", SECOND / 2),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object):
    """A wrong value is refused when the configuration is made, with its name in the text."""
    with pytest.raises(ConfigError, match=name):
        QueueConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shards", 64),
        ("max_shards", 1000),
        ("open_shards", 64),
        ("max_attempts", 0),
        ("max_attempts", 2),
        ("time_shard", SECOND),
        ("time_shard", timedelta(days=30)),
        ("visibility", 2 * SECOND),
        ("visibility", timedelta(hours=12)),
    ],
)
def test_ends_of_ranges_are_accepted(name: str, value: object):
    """The ends of each range belong to it."""
    assert getattr(QueueConfig(**{name: value}), name) == value


def test_too_many_shards_are_told_what_limits_them():
    """A limit of one queue is chosen with the queue."""
    with pytest.raises(ConfigError, match=r"from 1 to 100, the queue's max_shards \(--max-shards\)"):
        QueueConfig(shards=1000, max_shards=100)


def test_lease_is_never_above_the_visibility():
    """A lock is not held longer than the messages it was taken for."""
    assert QueueConfig(lease=60 * SECOND, visibility=10 * SECOND).lease_ms == 10_000


@pytest.mark.parametrize("name", FIXED)
def test_fixed_values_cannot_be_altered(name: str):
    """What keys are derived from stays as it was when the queue was made; the same value is no change."""
    config = QueueConfig()
    other = config.time_shard * 2 if name == "time_shard" else 8
    with pytest.raises(ConfigError, match="fixed"):
        config.altered({name: other})
    assert config.altered({name: getattr(config, name)}) == config


def test_altering_checks_names_and_values():
    """An unknown name or a value out of range changes nothing."""
    with pytest.raises(ConfigError, match="no such setting: colour"):
        QueueConfig().altered({"colour": "red"})
    with pytest.raises(ConfigError, match="shards"):
        QueueConfig().altered({"shards": 65})
    assert QueueConfig().altered({"shards": 8}).shards == 8


CONFIGS = st.builds(
    QueueConfig,
    shards=st.integers(1, 4),
    time_shard=st.sampled_from([n * SECOND for n in (1, 30, 1800, 3600, 7200, 2_592_000)]),
    visibility=st.integers(2000, 43_200_000).map(lambda ms: timedelta(milliseconds=ms)),
    lease=st.integers(1000, 60_000).map(lambda ms: timedelta(milliseconds=ms)),
    max_attempts=st.sampled_from((0, 2, 5, 1_000_000)),
    max_shards=st.integers(4, 1000),
    open_shards=st.integers(1, 64),
)


@given(CONFIGS)
def test_stored_configuration_comes_back(config: QueueConfig):
    """Every client reads what was stored."""
    assert QueueConfig.from_json(config.to_json()) == config


def test_settings_of_a_newer_version_are_left_out():
    """A client reads the configuration of a newer one, as far as it knows the names."""
    text = QueueConfig().to_json().replace("{", '{"from_the_future": 1, ', 1)
    assert QueueConfig.from_json(text) == QueueConfig()


def test_settings_of_a_newer_version_survive_an_older_client_s_change():
    """A client that alters a queue keeps what a newer one has stored, and names no setting unknown to it."""
    stored = '{"color": "red", "deep": {"a": [1]}, ' + QueueConfig().to_json()[1:]
    changed = json.loads(QueueConfig.from_json(stored).altered({"shards": 8}).to_json(stored))
    assert changed == json.loads(stored) | {"shards": 8}
    with pytest.raises(ConfigError, match="no such setting: color"):
        QueueConfig.from_json(stored).altered({"color": "blue"})


STORED = [QueueConfig, LogConfig]
_FULL = {QueueConfig: json.loads(QueueConfig().to_json()), LogConfig: json.loads(LogConfig().to_json())}


@pytest.mark.parametrize("config", STORED)
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"x"', "{}", "[" * 100_000, None, b"\xff"])
def test_what_is_no_configuration_is_a_damaged_row(config, text):
    """A stored configuration that nobody wrote is a damaged row, not a programming error of the caller."""
    with pytest.raises(DamagedRow, match="the stored configuration"):
        config.from_json(text)


@pytest.mark.parametrize("config", STORED)
@given(data=st.data())
def test_a_damaged_setting_is_a_damaged_row(config, data):
    """Whatever stands in one setting, a client reads a valid configuration or reports a damaged row."""
    name = data.draw(st.sampled_from(sorted(_FULL[config])))
    junk = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))
    with contextlib.suppress(DamagedRow):
        config.from_json(json.dumps(_FULL[config] | {name: data.draw(junk)}))


@given(CONFIGS)
def test_epochs_are_small_and_hold_whole_time_shards(config: QueueConfig):
    """A registry partition holds at most 10,000 wide rows, and a whole number of time shards."""
    epoch_ms, width = config.epoch_ms(), config.time_shard_ms
    assert epoch_ms % width == 0
    assert epoch_ms // width * config.max_shards <= MAX_EPOCH_ROWS
    assert epoch_ms == width or HOUR_MS % epoch_ms == 0
