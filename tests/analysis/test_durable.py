"""Files that are whole under their own name, whatever fails."""

import errno
import os
import stat

import pytest

from analysis.durable import partial_of, write_durably, written_durably


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"older")
    return path


def test_a_file_takes_its_name_between_two_syncs(path, monkeypatch):
    seen, sync = [], os.fsync

    def note(file):
        is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
        seen.append(("folder" if is_folder else "file", path.read_bytes()))
        sync(file)

    monkeypatch.setattr("os.fsync", note)
    write_durably(path, b"newer")
    # Its bytes are on the disk before it replaces what was there, the new name after.
    assert seen == [("file", b"older"), ("folder", b"newer")]
    assert [each.name for each in path.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), ValueError(), KeyboardInterrupt()]
)
def test_what_fails_half_way_leaves_what_was_there_and_nothing_else(path, error):
    with pytest.raises(type(error)), written_durably(path) as draft:
        assert draft == partial_of(path)
        draft.write_bytes(b"ne")
        raise error
    assert path.read_bytes() == b"older"
    assert [each.name for each in path.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_synced_is_no_failure_but_a_broken_disk_is(
    path, monkeypatch, number, fails
):
    sync = os.fsync

    def refuse(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        sync(file)

    monkeypatch.setattr("os.fsync", refuse)
    if fails:
        with pytest.raises(OSError, match=os.strerror(number)):
            write_durably(path, b"newer")
    else:
        write_durably(path, b"newer")
    assert path.read_bytes() == b"newer"
