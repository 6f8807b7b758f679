"""What tests read from files to which other processes are writing."""

from tests.acceptance.journals import whole_lines


def test_a_line_that_is_half_written_is_not_read(tmp_path):
    journal = tmp_path / "journal"
    assert whole_lines(journal) == []
    for written, read in (("17642", []), ("17642 1\n", ["17642 1"]), ("17642 1\n1", ["17642 1"])):
        journal.write_text(written)
        assert whole_lines(journal) == read
