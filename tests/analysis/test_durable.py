"""Files that are whole under their own name, whatever fails and whoever else writes them."""

import errno
import fcntl
import os
import signal
import stat
from pathlib import Path

import pytest

from analysis.files.durable import unwritable, write_durably, written_durably


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
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), ValueError(), KeyboardInterrupt()]
)
def test_what_fails_half_way_leaves_what_was_there(path, error):
    with pytest.raises(type(error)), written_durably(path) as draft:
        assert draft.parent == path.parent  # on the same disk
        draft.write_bytes(b"ne")
        raise error
    assert path.read_bytes() == b"older"
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_only_a_broken_disk_fails_a_sync_of_the_folder(path, monkeypatch, number, fails):
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


def test_two_writers_of_a_name_do_not_meet(path):
    with written_durably(path) as draft, draft.open("wb", buffering=0) as first:
        first.write(b"the fi")
        write_durably(path, b"the second, which is longer")
        first.write(b"rst")
        assert path.read_bytes() == b"the second, which is longer"
    assert path.read_bytes() == b"the first"
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.json"]


def killed_while_writing(path):
    """A process of its own writes half a file and is killed; its draft."""
    child = os.fork()
    if child == 0:
        with written_durably(path) as draft:
            draft.write_bytes(b"ha")
            os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_the_next_writer_removes_the_draft_of_a_killed_one(path):
    for _ in range(2):
        killed_while_writing(path)
        (left,) = (entry for entry in path.parent.iterdir() if entry != path)
        assert left.name.startswith(".plan.json.")
        assert left.name.endswith(".partial")
        assert (path.read_bytes(), left.read_bytes()) == (b"older", b"ha")
    write_durably(path.with_name("plan.jsonl"), b"another name")
    assert left.exists()
    # Who is still writing keeps the draft, who was killed does not.
    with written_durably(path) as draft:
        draft.write_bytes(b"newer")
        write_durably(path, b"meanwhile")
        assert not left.exists()
    assert path.read_bytes() == b"newer"
    assert {entry.name for entry in path.parent.iterdir()} == {"plan.json", "plan.jsonl"}


def test_a_draft_that_was_taken_before_its_lock_is_made_again(path, monkeypatch):
    """The moment between the making of a draft and its lock, in which it looks abandoned."""
    flock, drafts = fcntl.flock, []

    def late(file, how):
        if not how & fcntl.LOCK_NB:
            drafts.append(file.name)
            if len(drafts) == 1:
                write_durably(path, b"meanwhile")
                assert not Path(file.name).exists()
        flock(file, how)

    monkeypatch.setattr("fcntl.flock", late)
    write_durably(path, b"newer")
    # The first, that of the writer between, and the one in place of the first.
    assert len(set(drafts)) == 3
    assert path.read_bytes() == b"newer"
    assert [entry.name for entry in path.parent.iterdir()] == ["plan.json"]


def test_without_locks_drafts_of_others_are_left_alone(path, monkeypatch):
    killed_while_writing(path)

    def refuse(_file, _how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    write_durably(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert len(list(path.parent.iterdir())) == 2


def test_a_file_gets_the_rights_that_the_process_gives(path):
    before = os.umask(0o027)
    try:
        write_durably(path, b"newer")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_writer_that_fails_leaves_the_draft_of_another(path):
    with written_durably(path) as first:
        first.write_bytes(b"newer")
        with pytest.raises(ValueError), written_durably(path) as second:
            second.write_bytes(b"half")
            raise ValueError
    assert path.read_bytes() == b"newer"


def test_a_folder_that_can_take_files_is_left_as_it_was(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "not" / "there"):
        assert unwritable(folder) == ""
    assert unwritable(tmp_path / "file" / "below") == f"{tmp_path / 'file'} is a file"
    assert unwritable(Path("/proc/none"))  # where even root makes nothing
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
