import os
import stat
from pathlib import Path

import pytest

from analysis.errors import PlanError
from analysis.files.text_file import near_file, read_text_file


def test_a_pipe_and_a_device_are_refused_without_being_opened(tmp_path):
    pipe = tmp_path / "plan.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        assert not stat.S_ISREG(path.stat().st_mode)
        with pytest.raises(PlanError, match="no regular file"):
            read_text_file("plan", path)


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xef\xbb\xbf12\r\n4")  # a byte order mark, as Windows writes
    assert read_text_file("plan", path, most_bytes=8) == "12\n4"
    with pytest.raises(PlanError, match="larger than 7 bytes"):
        read_text_file("plan", path, most_bytes=7)


def test_the_nearest_file_of_the_same_kind_is_named(tmp_path):
    for name in ("plan.json", "plan.csv", "other.json", "recipe.yaml"):
        (tmp_path / name).touch()
    for name, nearest in (("plam.json", "plan.json"), ("recipe.yml", "recipe.yaml")):
        assert near_file(tmp_path / name) == f" Did you mean '{tmp_path / nearest}'?"
    # Endings that are alike make no names alike.
    for name in ("nope.json", "plan.txt", "nowhere/plan.json"):
        assert near_file(tmp_path / name) == ""
