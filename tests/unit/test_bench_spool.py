"""`cqueue bench spool` measures every way at every durability, and leaves nothing on the disk."""

import json
from concurrent.futures import Future

import pytest

from cqueue import SpoolFull
from cqueue.bench import spool
from cqueue.cli.main import main
from cqueue.spool import Spool

DURABILITIES = ("each", "every-64", "interval", "os")


def test_each_durability_is_measured_beside_the_disk(tmp_path, capsys, monkeypatch):
    """Rates above zero of disk, spool and SQLite; persist-queue is measured, or said to be missing."""
    monkeypatch.setattr(spool, "STALL_S", 0.1)
    monkeypatch.setattr(spool, "ONES", 30)
    args = ["bench", "spool", "--messages", "300", "--rounds", "1", "--dir", str(tmp_path), "--json"]
    assert main(args) == 0
    result = json.loads(capsys.readouterr().out)
    for name in DURABILITIES:
        rates = result[f"{name}_per_s"]
        assert {"disk", "spool", "sqlite"} <= rates.keys()
        assert ("persist-queue" in rates) != ("missing" in result)
        assert all(rate > 0 for rate in rates.values())
    assert result["recovered_per_s"] > 0
    assert result["stall_ms"].keys() == {"idle", "flushing"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("refused", ["at once", "later"])
def test_a_stall_while_nothing_could_be_appended_is_no_figure(tmp_path, monkeypatch, refused):
    """The machine alone would be measured, and shown as what appends do to it."""

    def append_many(_self, _topic, _payloads):
        if refused == "at once":
            raise SpoolFull("full")
        answer = Future()
        answer.set_exception(SpoolFull("full"))
        return answer

    monkeypatch.setattr(spool, "STALL_S", 0.05)
    monkeypatch.setattr(Spool, "append_many", append_many)
    with pytest.raises(SpoolFull):
        spool._stall_ms(tmp_path, [b"x"])
    assert list(tmp_path.iterdir()) == []
