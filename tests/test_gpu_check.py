"""`python -m tools.gpu_check` on the CPU, with its tiny shape."""

import json

import pytest
import torch
from typer.testing import CliRunner

from analysis.errors import UserError
from tools.benchmarks.synthetic import shapes_on_disk
from tools.gpu_check.__main__ import app, check
from tools.gpu_check.parts import PARTS, NotRun, calibrated, export, load, verify
from tools.gpu_check.shapes import SHAPES, make_world

CPU = torch.device("cpu")


@pytest.mark.slow  # half a minute; a wrong export fails below in seconds
def test_all_parts_pass_and_placements_agree_to_the_bit(tmp_path):
    words = ["--device", "cpu", "--folder", str(tmp_path), "-o", str(tmp_path / "report.json")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert [row["part"] for row in rows] == ["model", *PARTS]
    assert {row["outcome"] for row in rows} == {"PASS"}, rows
    figures = {row["part"]: row["figures"] for row in rows}
    differences = [values["difference"] for values in figures.values() if "difference" in values]
    assert differences == [0, 0, 0, 0]
    places = {part: values.get("weights on") for part, values in figures.items()}
    assert places["--device-map auto"] == "cpu" and places["offload"] == "cpu, disk"
    assert figures["verify"]["level"] == "logits"
    assert done.exit_code == 0 and "--stream-layers" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_wrong_export_fails_and_parts_without_their_input_do_not_run(tmp_path):
    world = make_world(SHAPES["tiny"], CPU, tmp_path, 600)
    for part in (export, verify, load):
        with pytest.raises(NotRun):
            part(world)
    calibrated(world, "device")
    export(world)
    for file in world.exported.glob("*.safetensors"):
        content = bytearray(file.read_bytes())
        content[-4096:] = content[-4096:][::-1]
        file.write_bytes(content)
    assert verify(world)[0] is False
    assert load(world)[0] is False


def test_what_does_not_fit_into_the_time_is_not_run_and_says_so(tmp_path):
    with pytest.raises(UserError, match="too much for the time"):
        make_world(SHAPES["tiny"], CPU, tmp_path, 0)
    (row,) = check("tiny", CPU, tmp_path, 0)
    assert row.outcome == "not run" and "time" in row.detail


# Published numbers of parameters.
@pytest.mark.parametrize(
    ("name", "params"), [("olmoe-7b", 6_919_161_856), ("qwen3-30b", 30_532_122_624)]
)
def test_shapes_are_the_published_ones(name, params):
    shards = shapes_on_disk(SHAPES[name].config(SHAPES[name].layers))
    sizes = [torch.Size(size).numel() for shapes in shards.values() for size in shapes.values()]
    assert sum(sizes) == params
