"""Checkpoints as they are published, at full size: what is read of them, counted, planned and cut.

The data are holes, so that no weight can be read; names and shapes are real. Figures are those of
model cards and published indexes (`published`); what an export must hold follows from names alone
(`expectations`).
"""

import gc
import json
import re
import sys

import pytest
from calibrations import make_sequences, make_settings

from analysis.calibration.config_outline import outline_model
from analysis.calibration.loading import check_loadable
from analysis.calibration.memory import active_params, estimate, memory_needs
from analysis.errors import UnsupportedModelError
from analysis.model.heads import beside_text, prediction_heads
from analysis.model.opening import load_model_index
from analysis.model.outline import without_weights
from analysis.stats.store import StatsStore
from app.cli import main
from app.cli.inspect import _facts
from layouts.composites import COMPOSITES
from layouts.cuts import CUTS
from layouts.expectations import half_of, wanted_of, with_count, without_added
from layouts.hollow_models import header_of, write_hollow
from layouts.packed import PACKED
from layouts.page import PAGE, row_of
from layouts.published import LAYOUTS
from pruning.plan.plan import PruningPlan, fit_plan, model_ref
from pruning.plan.sizes import size_report
from pruning.planning.make import make_plan
from pruning.repair.run import check_repairable
from pruning.requests.plan import SpecRequest
from pruning.serving.engines import contents_of, verdicts
from pruning.spec.spec import spec_of
from pruning.study import Study
from pruning.surgery.export import prepare_export

# One of each kind stands for the others in the default run.
QUICK = ("GLM-4.7-Flash", "gpt-oss-20b", "Qwen3.5-35B-A3B", "mixtral-instruct-awq")
# Their tensors have the names of another's that is here. The sizes differ, and the figures.
OTHER_SIZES = (
    *("Mixtral-8x22B-v0.1", "Qwen2-57B-A14B", "Qwen3-235B-A22B", "Qwen3-Coder-480B-A35B-Instruct"),
    *("Qwen3.5-122B-A10B", "Qwen3.5-397B-A17B", "gpt-oss-120b", "granite-3.1-3b-a800m-base"),
    *("granite-4.0-h-small", "AI21-Jamba-1.5-Large"),
)
EVERY = LAYOUTS | COMPOSITES | PACKED
# Of the others, `test_cuts` compares an export byte by byte.
NOT_CUT = (*QUICK, *(name for name in EVERY if name not in (*QUICK, *OTHER_SIZES, *CUTS)))
DISTINCT = (*NOT_CUT, *(name for name in CUTS if name not in QUICK))
ALL = (*DISTINCT, *OTHER_SIZES)
# Why transformers loads no such checkpoint, so that none can be calibrated.
UNLOADABLE = {
    "Kimi-K2-Thinking": "quantised with compressed-tensors",
    "Qwen1.5-MoE-A2.7B-Chat-GPTQ-Int4": "quantised with gptq",
    "mixtral-instruct-awq": "quantised with awq",
    "GLM-4.5-Air-FP8": "quantised with compressed-tensors",
    "Qwen3-30B-A3B-NVFP4": "quantised with modelopt",
    "Qwen3-30B-A3B-bnb-4bit": "quantised with bitsandbytes",
}
# Where a router's choice does not leave half of the experts to spare, as much as can go.
SPARSITY = {"FlexOlmo-7x7B-1T": "28.58%"}
UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}


def of_layouts(*names):
    """A test of the first layouts of all: pytest groups tests by places in their lists."""
    assert names == ALL[: len(names)]
    marks = {name: [] if name in QUICK else pytest.mark.slow for name in names}
    params = [pytest.param(EVERY[name], id=name, marks=marks[name]) for name in names]
    return pytest.mark.parametrize("published", params, indirect=True)


@pytest.fixture(scope="module")
def published(request, tmp_path_factory):
    """A layout, the header of its hollow checkpoint, and what is read of that."""
    folder = tmp_path_factory.mktemp("published") / str(request.param)
    # All of its entries live as long as it does: walks over them would find no garbage.
    gc.disable()
    try:
        header = header_of(request.param, folder)
        write_hollow(header, folder)
        yield request.param, header, load_model_index(str(folder))
    finally:
        gc.enable()
    for shard in folder.glob("*.safetensors"):
        shard.unlink()


def rounded(card):
    """What a figure of a card may stand for: half a unit of its last digit, or 1%."""
    value, unit = float(card[:-1]), UNITS[card[-1]]
    decimals = len(card[:-1].partition(".")[2])
    slack = max(0.5 * 10**-decimals, 0.01 * value)
    return (value - slack) * unit, (value + slack) * unit


@of_layouts(*ALL)
def test_what_is_read_is_what_is_published(published):
    layout, header, model = published
    assert [layer.index for layer in model.layers] == list(layout.sparse)
    assert {layer.num_experts for layer in model.layers} == {layout.experts}
    assert {layer.top_k for layer in model.layers} == {layout.top_k}
    assert {layer.num_groups for layer in model.layers} == {layout.groups}
    facts = _facts(model)
    shared = facts.get("shared experts", "none")
    assert shared.startswith(f"{layout.shared} of" if layout.shared else "none")
    assert f", {len(layout.sparse)} with experts" in facts["layers"]
    beyond = f"model.layers.{layout.text['num_hidden_layers']}"
    heads = {"": [], "counted": [], "mtp": ["mtp"], "beyond": [beyond]}[layout.heads]
    assert [head.name for head in prediction_heads(model)] == heads
    assert len(header) == (layout.tensors or len(header))
    report = size_report(model)
    assert report.bytes_before == (layout.nbytes or report.bytes_before)
    assert report.bytes_before == model.checkpoint.nbytes
    # Cards count prediction heads or not.
    aside = (model.checkpoint.tensors[name] for name in beside_text(model))
    trunk = report.params_before - sum(map(model.num_weights, aside))
    least, most = rounded(layout.total)
    assert trunk <= most
    assert least <= report.params_before
    if layout.active:  # cards count embedding and head or not
        least, most = rounded(layout.active)
        assert active_params(model) <= most
        assert least <= report.active_before
    assert {verdict.engine for verdict in verdicts(contents_of(model))}
    assert row_of(layout, model) in PAGE.read_text().splitlines()


@of_layouts(*DISTINCT)
def test_a_repair_refuses_what_is_quantised_and_nothing_else(published):
    layout, _, model = published
    kept = dict.fromkeys(layout.sparse, half_of(layout))
    plan = fit_plan(PruningPlan(model_ref(model), kept), model)
    in_blocks = model.quantisation == "fp8" and model.dtype == "F8_E4M3"
    if not layout.stored or in_blocks:  # which becomes BF16
        check_repairable(model, plan)
        return
    with pytest.raises(UnsupportedModelError, match="cannot be repaired: ") as error:
        check_repairable(model, plan)
    assert re.search(r"down_proj|\.w2\.", str(error.value))
    assert "is quantised (" in str(error.value)
    assert "repair a copy in BF16" in str(error.value)
    assert "\n" not in str(error.value)


@of_layouts(*DISTINCT)
def test_config_json_alone_tells_the_same(published):
    layout, header, model = published
    if model.family.discovered:
        with pytest.raises(UnsupportedModelError, match="not in the table of families"):
            outline_model(str(model.checkpoint.path))
        return
    outline = outline_model(str(model.checkpoint.path))
    entries = outline.checkpoint.tensors.values()
    # A correction bias is in float32 on some hubs' files, in bfloat16 on others.
    found = {
        entry.name: (entry.dtype, entry.shape) for entry in entries if "bias" not in entry.name
    }
    wanted = {name: entry for name, entry in header.items() if "bias" not in name}
    if layout.heads == "mtp":  # no configuration says how these are laid out
        wanted = {name: entry for name, entry in wanted.items() if not name.startswith("mtp.")}
    if layout.heads == "counted":  # a configuration alone does not tell that they are gone
        found = {name: entry for name, entry in found.items() if "layers.46." not in name}
    if layout.stored not in ("", "fp8", "mxfp4"):  # no configuration says how these are laid out
        caveat = without_weights(outline).caveats[-1]
        assert "as if the model were not quantised" in caveat
    elif model.family.model_type == "qwen3_5_moe":  # its auto class builds the text model alone
        assert size_report(outline).active_before == size_report(model).active_before
        (_, caveat) = without_weights(outline).caveats
        assert caveat == "Parts for other media (vision_config) are not counted."
    else:
        assert found == wanted


@of_layouts(*DISTINCT)
def test_the_estimate_of_a_calibration_ends(published):
    layout, _, model = published
    if reason := UNLOADABLE.get(str(layout)):
        with pytest.raises(UnsupportedModelError, match=reason):
            estimate(model, make_sequences(), make_settings())
    elif str(layout) in QUICK:
        assert all(estimate(model, make_sequences(), make_settings()).costs.values())
    else:  # all of it but the measured speed of this machine
        check_loadable(model)
        assert memory_needs(model, make_sequences(), make_settings()).streamed > 0
        assert active_params(model) > 0


@of_layouts(*DISTINCT)
def test_plan_and_sizes_without_a_weight(published, tmp_path):
    layout, header, model = published
    sparsity = SPARSITY.get(str(layout), "50%")
    spec = spec_of(criterion="random", sparsity=sparsity)
    request = SpecRequest(model=str(model.checkpoint.path), plan=spec)
    plan = make_plan(Study.of(request, model, StatsStore(tmp_path)).ranking(request.plan), spec)
    kept = {layer: tuple(ids) for layer, ids in plan.kept.items()}
    size = layout.experts // layout.groups
    half = max(layout.groups * -(-size // 2), layout.top_k)
    assert {index: len(ids) for index, ids in kept.items()} == dict.fromkeys(layout.sparse, half)
    report = size_report(model, plan)
    wanted = wanted_of(layout, header, kept)
    assert report.bytes_after == sum(tensor.nbytes for tensor in wanted.values())
    assert report.experts_removed == (layout.experts - half) * len(layout.sparse)


def joined(pieces):
    """Ranges of bytes of (start, size), neighbours as one."""
    ranges = []
    for start, size in pieces:
        first = ranges.pop()[0] if ranges and ranges[-1][1] == start else start
        ranges.append((first, start + size))
    return ranges


@of_layouts(*NOT_CUT)
def test_every_byte_of_an_export_is_one_that_should_be_kept(published, tmp_path):
    layout, header, model = published
    ids = half_of(layout)
    plan = PruningPlan(model_ref(model), dict.fromkeys(layout.sparse, ids))
    prepared = prepare_export(model, plan, tmp_path / "out")
    wanted = wanted_of(layout, header, dict.fromkeys(layout.sparse, ids))
    made = {tensor.name: tensor for shard in prepared.shards for tensor in shard.tensors}
    assert made.keys() == wanted.keys()
    for name, want in wanted.items():
        tensor, source = made[name], model.checkpoint.tensors[want.source]
        assert (tensor.source.name, tensor.shape) == (want.source, want.shape)
        if name.endswith(".tid2eid"):  # ids of experts, which are renumbered
            continue
        ranges = [(source.start, source.end)]
        if want.rows:
            count = source.shape[want.axis]
            assert source.numel == count or want.axis == 0
            row = source.nbytes // count
            ranges = joined((source.start + entry * row, row) for entry in want.rows)
        assert [(span.start, span.end) for span in tensor.spans] == ranges
    before = json.loads((model.checkpoint.path / "config.json").read_text())
    after = json.loads(prepared.files["config.json"])
    listed = with_count(before, layout.experts, len(ids))
    assert without_added(after, before, len(ids)) == listed


@pytest.fixture
def works(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["moeprune", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out

    return run


@of_layouts("GLM-4.7-Flash")
def test_commands_end_well(published, works, tmp_path):
    # Its head is a layer beyond the depth: the estimate of a calibration once looked it up.
    layout, _, model = published
    (tmp_path / "rows.jsonl").write_text('{"input_ids": [5, 6, 7, 8]}\n' * 4)
    folder, stats = model.checkpoint.path, ("--stats-dir", tmp_path / "stats")
    shown = works("inspect", folder)
    assert "47, 46 with experts; without: 0" in shown
    assert "model.layers.47, with experts; export drops them" in shown
    assert "memory by layers" in works(
        "calibrate", folder, "--corpus", "rows.jsonl", "--dry-run", *stats
    )
    works("plan", folder, "--criterion", "random", "--sparsity", "50%", "-o", "p.json", *stats)
    kept = json.loads((tmp_path / "p.json").read_text())["kept"]
    assert {int(index): len(ids) for index, ids in kept.items()} == dict.fromkeys(layout.sparse, 32)
