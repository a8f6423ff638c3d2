"""Exports that must not succeed, of damaged sources too: one line, and nothing left behind."""

import errno
import json
import os
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from exports import edit_tensors, keeping, shards_of, tensors_of
from typer.testing import CliRunner

from analysis.checkpoint.index import INDEX_NAME
from analysis.drain import drain
from analysis.errors import ExportError, UserError
from analysis.model.opening import load_model_index
from app.cli import cli
from builders import edit_json
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.surgery.export import export_checkpoint
from pruning.surgery.manifest import MANIFEST_NAME
from tests.reliability.faults import full_at


@pytest.fixture
def model(checkpoint):
    return load_model_index(str(checkpoint("olmoe").path))


@pytest.fixture
def plan(model):
    return keeping(model, (1, 3, 6))


def refuse(model, plan, out, match, error=ExportError):
    """The export fails with one line and leaves nothing new."""
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(error, match=match) as raised:
        drain(export_checkpoint(model, plan, out))
    assert "\n" not in str(raised.value)
    assert sorted(out.parent.rglob("*")) == before


def test_a_place_that_is_taken_is_refused(model, plan, tmp_path):
    out = tmp_path / "out"
    out.write_text("mine")
    refuse(model, plan, out, "out is a file")
    out.unlink()
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    refuse(model, plan, out, r"out is not empty; give a new or empty directory")
    assert (out / "precious.txt").read_text() == "mine"
    with pytest.raises(ExportError, match="is not empty"):
        drain(export_checkpoint(model, plan, model.checkpoint.path))
    refuse(model, plan, tmp_path / "a.partial", r"names that end in \.partial are for unfinished")


def test_a_place_inside_the_source_is_refused(model, plan, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(model.checkpoint.path, source)
    (tmp_path / "link").symlink_to(source)
    inside = load_model_index(str(source))
    for out in (source / "out", source / "deep" / "er", tmp_path / "link" / "out"):
        with pytest.raises(ExportError, match=r"lies inside the checkpoint .*source; choose"):
            drain(export_checkpoint(inside, plan, out))
    assert not (source / "deep").exists()


@pytest.fixture
def read_only(tmp_path):
    """A folder in which nobody may write, not even root."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid():
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_place_that_cannot_be_written_to_is_one_line(model, plan, read_only):
    match = r"out cannot be written \((Read-only file system|Permission denied)\); choose another"
    refuse(model, plan, read_only / "out", match)
    refuse(model, plan, read_only / "deeper" / "out", match)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")
def test_a_place_where_nothing_can_be_made_is_not_called_taken(model, plan):
    with pytest.raises(ExportError, match=r"^/proc/out cannot be written \(.+\); choose"):
        drain(export_checkpoint(model, plan, Path("/proc/out")))


def test_an_empty_directory_and_missing_parents_are_fine(model, plan, tmp_path):
    (tmp_path / "empty").mkdir()
    drain(export_checkpoint(model, plan, tmp_path / "empty"))
    drain(export_checkpoint(model, plan, tmp_path / "a" / "b"))
    for name in ("empty", "a/b"):
        assert (tmp_path / name / MANIFEST_NAME).is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "empty"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_a_card_that_cannot_be_read_is_refused(model, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(model.checkpoint.path, source)
    (source / "README.md").write_text("---\nlicense: [apache\n---\n")
    odd = load_model_index(str(source))
    refuse(odd, keep_all(odd), tmp_path / "out", "README.md cannot be read.*licence is not known")


def test_no_space_is_seen_before_anything_is_written(model, plan, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(1 << 40, 1 << 40, 5000))
    refuse(model, plan, tmp_path / "out", r"needs 1\.\d MiB, but .* has 5 KiB free; free some")


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        ("model-00002-of-*", OSError("the cable is loose")),
        ("config.json", OSError("the cable is loose")),
        ("model-*", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_a_failing_sync_is_told_in_its_own_words(
    model, plan, tmp_path, monkeypatch, pattern, error
):
    sync, said = os.fsync, error.strerror or error

    def failing(file):
        for path in (tmp_path / "out.partial").glob(pattern):
            if os.path.samestat(path.stat(), os.fstat(file)):
                raise error
        sync(file)

    monkeypatch.setattr("os.fsync", failing)
    refuse(model, plan, tmp_path / "out", f"failed: {said}[.;]")


def test_a_source_that_shrinks_meanwhile_is_refused(model, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(model.checkpoint.path, source)
    shrinking = load_model_index(str(source))
    plan = keeping(shrinking, (1, 3, 6))
    shard = sorted(source.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-200])
    refuse(shrinking, plan, tmp_path / "out", f"{shard.name} became shorter while it was read")


def test_a_cancelled_export_leaves_nothing(model, plan, tmp_path):
    task = export_checkpoint(model, plan, tmp_path / "out")
    next(task)
    assert (tmp_path / "out.partial").is_dir()
    task.close()
    assert list(tmp_path.iterdir()) == []
    drain(export_checkpoint(model, plan, tmp_path / "out"))


def test_two_exports_to_one_place_do_not_fight(model, plan, tmp_path):
    first = export_checkpoint(model, plan, tmp_path / "out")
    next(first)
    with pytest.raises(ExportError, match=r"Another export to .*out is running"):
        drain(export_checkpoint(model, plan, tmp_path / "out"))
    drain(first)
    assert (tmp_path / "out" / MANIFEST_NAME).is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_directory_filled_meanwhile_is_not_overwritten(model, plan, tmp_path):
    task = export_checkpoint(model, plan, tmp_path / "out")
    next(task)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("mine")
    with pytest.raises(ExportError, match="cannot take the finished export"):
        drain(task)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "precious.txt"]


@pytest.fixture
def source(checkpoint, tmp_path):
    """A copy of a checkpoint, to break, with a plan beside it that was made when it was whole."""
    path = tmp_path / "source"
    shutil.copytree(checkpoint("olmoe").path, path)
    model = load_model_index(str(path))
    plan = PruningPlan(model_ref(model), dict.fromkeys((0, 1, 2), (1, 3, 6)))
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "to").mkdir()
    return path


def edit_index(path, edit):
    placed = json.loads((path / INDEX_NAME).read_text())["weight_map"]
    edit(placed)
    edit_json(path / INDEX_NAME, weight_map=placed)


def shard_with(path, words):
    """The first shard that holds a tensor of which the name has these words, and that name."""
    held = ((shard, name) for shard in shards_of(path) for name in tensors_of(shard))
    return next((shard, name) for shard, name in held if words in name)


def truncated(path):
    shard = shards_of(path)[1]
    shard.write_bytes(shard.read_bytes()[:-100])


def missing_shard(path):
    shards_of(path)[1].unlink()


def tensor_elsewhere(path):
    first, second = shards_of(path)[:2]
    name = next(iter(tensors_of(first)))
    edit_index(path, lambda placed: placed.update({name: second.name}))


def name_in_two_shards(path):
    first, second = shards_of(path)[:2]
    name, tensor = next(iter(tensors_of(first).items()))
    edit_tensors(second, lambda held: held | {name: tensor})


def expert_gone(path):
    shard, name = shard_with(path, ".experts.5.")
    edit_tensors(shard, lambda held: {key: held[key] for key in held if key != name})
    edit_index(path, lambda placed: placed.pop(name))


def router_without_elements(path):
    shard, name = shard_with(path, "model.layers.1.mlp.gate.weight")
    edit_tensors(shard, lambda held: held | {name: torch.zeros(0, 16)})


def unknown_expert_tensor(path):
    name, shard = "model.layers.2.mlp.experts.adapter", shards_of(path)[0]
    edit_tensors(shard, lambda held: held | {name: torch.zeros(7)})
    edit_index(path, lambda placed: placed.update({name: shard.name}))


# What else a checkpoint may lack, tests/analysis/test_checkpoint.py has.
DAMAGES = {
    truncated: "is truncated",
    missing_shard: "is missing from",
    tensor_elsewhere: "which does not hold it",
    name_in_two_shards: "both hold",
    expert_gone: "lacks the expert 5's",
    router_without_elements: "gate.weight has 0 rows",
    unknown_expert_tensor: "does not say how to prune it",
}


def run(*words):
    """Exit status and what is said, of a command in this process."""
    result = CliRunner().invoke(cli, [*map(str, words)])
    if isinstance(result.exception, UserError):
        return 1, str(result.exception)  # which `main` prints as one line
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def remake_plan(path, plan):
    """Make the plan one of the damaged model, where that can still be described."""
    try:
        model = load_model_index(str(path))
    except UserError:
        return
    plan.write_text(PruningPlan(model_ref(model), dict.fromkeys((0, 1, 2), (1, 3, 6))).to_json())


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_source_is_one_line_and_leaves_nothing(source, damage):
    damage(source)
    plan = source.with_name("plan.json")
    remake_plan(source, plan)
    code, said = run("export", source, source.with_name("to") / "out", "--plan", plan)
    assert code == 1
    assert DAMAGES[damage] in said
    assert "\n" not in said
    assert list(source.with_name("to").iterdir()) == []


@pytest.mark.parametrize("damage", [truncated, tensor_elsewhere])
def test_verify_with_a_source_that_was_damaged_later_is_one_line(source, damage):
    out = source.with_name("to") / "out"
    assert run("export", source, out, "--plan", source.with_name("plan.json"))[0] == 0
    damage(source)
    code, said = run("verify", out, "--source", source)
    assert code == 1
    assert DAMAGES[damage] in said
    assert "\n" not in said
    assert run("verify", out, "--level", "bytes")[0] == 0


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing(model, plan, tmp_path):
    # The limit on the size of files stands in for a full disk: write() fails in the same way.
    with full_at(10_000):
        refuse(model, plan, tmp_path / "out", r"Writing model-0000\d-of-.* failed: File too large")
    drain(export_checkpoint(model, plan, tmp_path / "out"))


def test_an_index_that_forgets_a_tensor_can_be_written_anew(source):
    edit_index(source, lambda placed: placed.pop("model.norm.weight"))
    plan, out = source.with_name("plan.json"), source.with_name("to") / "out"
    remake_plan(source, plan)
    assert run("export", source, out, "--plan", plan, "--max-shard-size", "20KB")[0] == 0
    assert "model.norm.weight" in json.loads((out / INDEX_NAME).read_text())["weight_map"]
    assert run("verify", out, "--source", source, "--level", "bytes")[0] == 0
