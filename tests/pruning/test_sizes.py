"""Sizes of plans of experts and neurons: by hand, of published models, of real exports."""

import json
import shutil
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from exports import export, keeping_neurons
from neuron_cases import allowed
from published_models import DEEPSEEK, ERNIE, MIXTRAL, OLMOE, QWEN3
from safetensors.torch import load_file, save_file

from analysis.calibration.config_outline import outline_model
from analysis.errors import PlanError
from analysis.families.base import MoELayer
from analysis.model.opening import load_model_index
from analysis.model.widths import expert_widths
from builders import MODEL_TYPES, as_gib
from builders.statistics import expert_stats
from families.configs import BY_NAME, SOURCES
from pruning import load_pruned
from pruning.plan.budget import SizeTarget, count_budget
from pruning.plan.constraints import Constraints
from pruning.plan.expert_sizes import active_experts, counted_routing, token_shares
from pruning.plan.plan import PruningPlan, fit_plan, keep_all, model_ref
from pruning.plan.selection import neurons_left
from pruning.plan.size_words import change_words, growth_words
from pruning.plan.sizes import (
    NEURON_SIZE_COLUMNS,
    PLAN_ALONE,
    SIZE_COLUMNS,
    ModelPart,
    format_bytes,
    neuron_plan_sizes,
    size_report,
    weight_bytes,
)
from pruning.plan.units import NeuronScope, neuron_units
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.planning.make import neuron_size_budget, neurons_removed
from pruning.schedules import uniform
from pruning.surgery.width_sizes import width_options


def same_count(model, keep):
    """A plan that keeps `keep` experts a layer, not the first ones."""
    kept = {
        layer.index: tuple(range(layer.num_experts - keep, layer.num_experts))
        for layer in model.layers
    }
    return PruningPlan(model_ref(model), kept)


def test_sizes_by_hand(checkpoint):
    # d = 16, 3 layers of 7 experts of width 24, top-2, 2 heads of 8 and 1 key-value head, vocab 96.
    model = load_model_index(str(checkpoint("olmoe").path))
    report = size_report(model, same_count(model, 4))
    expert = 3 * 24 * 16
    attention = 3 * (2 * 16 * 16 + 2 * 8 * 16 + 16 + 8)  # q o, k v, and the norms of q and k
    params = {
        "routed experts": (3 * 7 * expert, 3 * 4 * expert),
        "routers": (3 * 7 * 16, 3 * 4 * 16),
        "shared and dense MLP": (0, 0),
        "attention": (attention, attention),
        "embeddings and head": (2 * 96 * 16,) * 2,
        "norms and other": (3 * 2 * 16 + 16,) * 2,
    }
    assert tuple(report.table.columns) == SIZE_COLUMNS
    for row in report.table.itertuples():
        assert (row.params_before, row.params_after) == params[row.part]
        assert (row.before, row.after) == tuple(4 * count for count in params[row.part])
    assert report.experts_removed == 3 * 3
    inactive = 3 * expert  # per expert of a layer, in the three layers
    assert report.active_before == report.params_before - (7 - 2) * inactive
    assert report.active_after == report.params_after - (4 - 2) * inactive
    # A token uses as many experts as before; only the router became shorter.
    assert report.active_before - report.active_after == 3 * 3 * 16


def test_dense_layers_are_a_part_of_their_own(checkpoint):
    report = size_report(load_model_index(str(checkpoint("qwen3_moe").path)))
    table = report.table.set_index("part")
    assert table.loc["shared and dense MLP", "params_before"] == 3 * 40 * 16
    assert table.loc["embeddings and head", "params_before"] == 96 * 16  # tied
    assert report.bytes_before == report.bytes_after


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_sizes_are_the_bytes_that_export_writes(checkpoint, tmp_path, model_type, fused):
    model = load_model_index(str(checkpoint(model_type, fused=fused).path))
    plan = same_count(model, 3)
    manifest = export(model, plan, tmp_path / "out")
    written = load_model_index(str(tmp_path / "out"))
    report = size_report(model, plan)
    assert report.bytes_after == weight_bytes(model, plan) == written.checkpoint.nbytes
    assert report.params_after == written.checkpoint.num_params
    headers = sum(shard.data_start for shard in written.checkpoint.shards)
    assert manifest.nbytes == report.bytes_after + headers
    assert report.experts_after == written.num_experts


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (17, "17 B"),
        (812 << 10, "812 KiB"),
        (10_900_000, "10.4 MiB"),
        (1 << 30, "1.00 GiB"),
        (13_838_323_712, "12.89 GiB"),  # OLMoE in bf16
    ],
)
def test_bytes_for_people(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (614, "39% smaller"),
        (1000, "as large as the original"),
        (1512, "larger than the original by 512 B"),
    ],
)
def test_changes_of_sizes_for_people(after, change):
    assert change_words(1000, after) == change
    assert growth_words(1000, after) == (change if after > 1000 else "")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.0.mamba.in_proj.weight", ModelPart.ATTENTION),
        ("model.layers.0.linear_attn.conv1d.weight", ModelPart.ATTENTION),
        ("backbone.layers.2.mixer.in_proj.weight", ModelPart.ATTENTION),
        ("backbone.layers.2.mixer.A_log", ModelPart.ATTENTION),
        ("backbone.layers.3.mixer.shared_experts.up_proj.weight", ModelPart.MLP),
        ("backbone.layers.3.mixer.fc1_latent_proj.weight", ModelPart.MLP),
        ("model.layers.1.shared_mlp.input_linear.weight", ModelPart.MLP),
        ("model.layers.1.mlp.shared_expert_gate.weight", ModelPart.MLP),
        ("language_model.model.embed_tokens.weight", ModelPart.EMBEDDINGS),
        ("backbone.embeddings.weight", ModelPart.EMBEDDINGS),
        ("model.language_model.norm.weight", ModelPart.OTHER),
    ],
)
def test_parts_are_told_by_name_in_every_family(checkpoint, tmp_path, name, part):
    source = tmp_path / "source"
    shutil.copytree(checkpoint("olmoe", shards=1).path, source)
    tensors = load_file(source / "model.safetensors")
    before = size_report(load_model_index(str(source))).table.set_index("part")["before"]
    extra = {name: torch.zeros(3, 5)}
    save_file({**tensors, **extra}, source / "model.safetensors", metadata={"format": "pt"})
    after = size_report(load_model_index(str(source))).table.set_index("part")["before"]
    assert (after - before).loc[lambda grown: grown != 0].to_dict() == {str(part): 60}


GIB = 2**30


def mlp(hidden, width):
    """Weights of gate, up and down."""
    return 3 * hidden * width


# Weights of each model, added up by hand: embeddings and head, last norm, dense layers, then per
# sparse layer attention with its norms, the two norms around, experts with router, shared ones.
BY_HAND = {
    "olmoe": 2 * 50_304 * 2048 + 2048
    + 16 * (4 * 2048**2 + 2 * 2048 + 2 * 2048 + 64 * (mlp(2048, 1024) + 2048)),
    # MLA: queries of 128 + 64 for 16 heads, one latent of 512 with 64 rotary ones, its norm, keys
    # and values of 128 each from the latent, output.
    "deepseek_v2": 2 * 102_400 * 2048 + 2048
    + 27 * (2048 * 16 * 192 + 2048 * 576 + 512 + 512 * 16 * 256 + 16 * 128 * 2048 + 2 * 2048)
    + mlp(2048, 10_944)
    + 26 * (64 * (mlp(2048, 1408) + 2048) + mlp(2048, 2 * 1408)),
    "ernie4_5_moe": 103_424 * 2560 + 2560
    + 28 * (2 * 2560 * 2560 + 2 * 2560 * 512 + 2 * 2560)
    + mlp(2560, 12_288)
    + 27 * (64 * (mlp(2560, 1536) + 2560 + 1) + mlp(2560, 2 * 1536)),  # + 1: correction bias
    "qwen3_moe": 2 * 151_936 * 2048 + 2048
    + 48 * (2 * 2048 * 4096 + 2 * 2048 * 512 + 2 * 128 + 2 * 2048)
    + 48 * 128 * (mlp(2048, 768) + 2048),
    "mixtral": 2 * 32_000 * 4096 + 4096
    + 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 2 * 4096 + 8 * (mlp(4096, 14_336) + 4096)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "params", "before", "after", "layers"),
    [
        (OLMOE, 6.919e9, 12.89, 6.89, 16),
        (DEEPSEEK, 15.706e9, 29.27, 15.86, 26),
        (ERNIE, 21.825e9, 40.66, 21.67, 27),
        (QWEN3, 30.532e9, 56.92, 29.93, 48),
    ],
    ids=["OLMoE", "DeepSeek-V2-Lite", "ERNIE-4.5-21B", "Qwen3-30B"],
)
def test_sizes_of_published_models(tmp_path, config, params, before, after, layers):
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = outline_model(str(tmp_path))
    keep = uniform(model.layers, "50%").keep
    plan = PruningPlan(
        model_ref(model),
        {layer.index: tuple(range(n)) for layer, n in zip(model.layers, keep, strict=True)},
    )
    report = size_report(model, plan)
    assert report.params_before == BY_HAND[config["model_type"]]
    assert report.params_before == pytest.approx(params, rel=1e-4)
    # The paper measured loaded memory, which is a little more than the weights.
    for size, published in zip(report.loaded("bfloat16"), (before, after), strict=True):
        assert size / GIB == pytest.approx(published, rel=2.5e-3)
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    flops = 2 * mlp(config["hidden_size"], width)  # a multiplication and an addition per weight
    assert report.expert_flops == layers * model.layers[0].top_k * flops


def test_the_size_of_mixtral_adds_up_by_hand(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    assert size_report(outline_model(str(tmp_path))).params_before == BY_HAND["mixtral"]


# The tiny OLMoE: d = 16, 3 layers of 7 experts of width 24, top-2, float32.
NEURON = 3 * 16


@pytest.fixture
def model(checkpoint):
    return load_model_index(str(checkpoint("olmoe").path))


@pytest.fixture
def plan(model):
    """Layer 0: widths 24, 8, 0 and four times 24; layer 1 loses two experts; layer 2 is whole."""
    neurons = {0: {1: tuple(range(3, 11)), 2: ()}}
    kept = {1: (0, 2, 3, 5, 6)}
    return PruningPlan(model_ref(model), kept, granularity="neuron", kept_neurons=neurons)


def test_shares_by_hand():
    layer = MoELayer(3, 4, 2)
    assert token_shares(layer, (0, 1, 3), None) == dict.fromkeys((0, 1, 3), Fraction(2, 3))
    # 10 tokens choose two experts each.
    routing = {3: (8, 6, 5, 1)}
    shares = token_shares(layer, range(4), routing)
    assert shares == {
        0: Fraction(8, 10),
        1: Fraction(6, 10),
        2: Fraction(5, 10),
        3: Fraction(1, 10),
    }
    # Without expert 2 the others take its tokens in proportion: 2 * 8/15 is more than 1.
    assert token_shares(layer, (0, 1, 3), routing)[0] == Fraction(16, 15)
    assert token_shares(layer, (3,), {3: (1, 1, 1, 0)}) == {3: 2}


def test_active_and_flops_by_hand(model, plan):
    routing = {0: (9, 5, 4, 2, 0, 0, 0), 1: (1,) * 7, 2: (1,) * 7}
    even, measured = (active_experts(model, fit_plan(plan, model), r) for r in (None, routing))
    # Even: two of seven, 5 * 24 + 8 neurons; layers 1 and 2 have two experts of 24 each.
    assert even.params == round(Fraction(2, 7) * 128 * NEURON) + 2 * 48 * NEURON
    # Measured: 10 tokens; shares .9, .5, .4, .2 of widths 24, 8, 0, 24: 30.4 neurons.
    assert measured.params == round(Fraction(304, 10) * NEURON) + 2 * 48 * NEURON
    assert measured.flops == round(2 * Fraction(304, 10) * NEURON) + 2 * 2 * 48 * NEURON
    whole = active_experts(model, keep_all(model), routing)
    assert whole.params == 3 * 48 * NEURON
    report = size_report(model, plan, routing)
    assert (report.expert_flops, report.expert_flops_after) == (whole.flops, measured.flops)
    assert report.is_measured
    experts_after = (128 + 5 * 24 + 7 * 24) * NEURON
    assert report.active_after == report.params_after - experts_after + measured.params
    assert not size_report(model, plan).is_measured


def test_modes_by_hand(model, plan):
    table = neuron_plan_sizes(model, plan, 8).set_index("mode")
    assert tuple(table.reset_index().columns) == NEURON_SIZE_COLUMNS
    routers, rest = (7 + 5 + 7) * 16, size_report(model).params_before - 21 * (24 * NEURON + 16)
    wide = (7 + 5 + 7) * 24 * NEURON
    cut = wide - (16 + 24) * NEURON
    assert table.loc[PLAN_ALONE, "params"] == table.loc["ragged", "params"] == rest + routers + cut
    for mode in ("uniform", "per-layer"):
        assert table.loc[mode, "params"] == rest + routers + wide
    assert (
        table.loc[["uniform", "per-layer", "ragged"], "loaded_params"] == rest + routers + wide
    ).all()
    assert (table["disk"] == 4 * table["params"]).all()
    # In memory experts are 24 wide, zeros or not.
    assert (table["expert_flops"].iloc[1:] == 2 * 3 * 48 * NEURON).all()
    assert (table["active"].iloc[1:] == rest + routers + 3 * 48 * NEURON).all()
    assert (table["refused"] == "").all()


def test_measured_routing_comes_from_statistics():
    table = expert_stats().table
    routing = counted_routing(table.sample(frac=1, random_state=1))
    for layer, counts in routing.items():
        rows = table[table["layer"] == layer].sort_values("expert")
        assert list(counts) == rows["num_tokens"].tolist()


@pytest.mark.parametrize("case", SOURCES)
def test_arithmetic_is_what_the_exporter_plans(neuron_source, case):
    source = neuron_source(case)
    model, plan = source.described, source.plan
    table = neuron_plan_sizes(model, plan).set_index("mode")
    for option in width_options(model, plan):
        row = table.loc[str(option.mode)]
        assert row["refused"] == option.refused
        if option.refused:
            assert pd.isna(row["disk"])
            continue
        assert row["loaded"] == option.loaded_bytes
        headers = option.disk_bytes - row["disk"]
        assert 0 < headers < 200 * len(model.checkpoint.tensors) + 999
    alone, report = table.loc[PLAN_ALONE], size_report(model, plan)
    assert (alone["params"], alone["disk"]) == (report.params_after, report.bytes_after)
    assert alone["active"] == report.active_after
    assert alone["expert_flops"] == report.expert_flops_after


@pytest.mark.parametrize("mode", list(WidthMode), ids=str)
@pytest.mark.parametrize("name", ["olmoe", "deepseek_v2", "gpt_oss", "nemotron_h"])
def test_arithmetic_is_what_exports_hold(width_export, name, mode):
    case = BY_NAME[name]
    if not allowed(case, str(mode)):
        return
    export = width_export(case, str(mode))
    row = (
        neuron_plan_sizes(export.source.described, export.source.plan)
        .set_index("mode")
        .loc[str(mode)]
    )
    written = load_model_index(str(export.path))
    assert row["disk"] == written.checkpoint.nbytes
    assert row["params"] == written.checkpoint.num_params
    held = {t.data_ptr(): t.numel() for t in load_pruned(export.path).state_dict().values()}
    assert row["loaded_params"] == sum(held.values())


class TestTarget:
    """The smallest budget that meets a target, found by trying every one."""

    @pytest.mark.parametrize("mode", list(WidthMode), ids=str)
    @pytest.mark.parametrize("scope", list(NeuronScope), ids=str)
    def test_against_every_budget(self, model, mode, scope):
        dtype = "bfloat16" if scope is NeuronScope.LAYER else "own"
        limits = Constraints(multiple_of=6, pinned={1: frozenset({3})}, floor=6)
        units = self.units(model, scope, limits)
        choice = WidthChoice(mode, 8)
        sizes = {}
        for total in units.totals:
            plan = self.plan(model, units, count_budget(units, total))
            row = neuron_plan_sizes(model, plan, 8).set_index("mode").loc[str(mode)]
            sizes[total] = int(row["disk"] if dtype == "own" else 2 * row["params"])
        for wanted in sorted(set(sizes.values()))[::7]:
            target = SizeTarget("size", as_gib(wanted), dtype)
            if wanted == max(sizes.values()):
                with pytest.raises(PlanError, match="Nothing would be removed"):
                    neuron_size_budget(units, model, target, choice)
                continue
            budget = neuron_size_budget(units, model, target, choice)
            assert budget.total == min(total for total, size in sizes.items() if size <= wanted)
        least = min(sizes.values())
        saves = least < max(sizes.values())
        message = "smallest target that works is" if saves else "can go, which saves nothing"
        with pytest.raises(PlanError, match=message) as caught:
            target = SizeTarget("size", as_gib(least - 1), dtype)
            neuron_size_budget(units, model, target, choice)
        if not saves:
            return
        works = str(caught.value).rpartition(" is ")[2].rstrip(".")
        target = SizeTarget("size", works, dtype)
        budget = neuron_size_budget(units, model, target, choice)
        assert sizes[budget.total] == least

    def units(self, model, scope, limits):
        generator = np.random.default_rng(5)
        widths = expert_widths(model)
        saliency = {
            layer: tuple(generator.normal(size=width) for width in held)
            for layer, held in widths.items()
        }
        return neuron_units(widths, limits, scope, saliency)

    def plan(self, model, units, budget):
        neurons = neurons_left(units, neurons_removed(units, budget))
        return keeping_neurons(model, neurons)


def params(share):
    return SizeTarget("params", share)


class TestParamsShare:
    """The smallest budget that takes a share of all parameters, by counting numbers in files."""

    # Of the tiny OLMoE with nothing removed: 21 experts of 24 neurons of NEURON numbers.
    neurons = 21 * 24

    def whole(self, model):
        """Numbers in the checkpoint's tensors, from the shapes in its headers alone."""
        shapes = [entry.shape for entry in model.checkpoint.tensors.values()]
        return sum(int(np.prod(shape)) for shape in shapes)

    @pytest.mark.parametrize("scope", list(NeuronScope), ids=str)
    @pytest.mark.parametrize("step", [1, 4])
    def test_the_share_is_reached_and_one_step_less_does_not(self, model, scope, step):
        units = TestTarget().units(model, scope, Constraints(multiple_of=step))
        whole = self.whole(model)
        for percent in (0, 1, 20, 37, 60):
            budget = neuron_size_budget(units, model, params(f"{percent}%"))
            assert (budget.kind, budget.text) == ("params", f"{percent}%")
            # A neuron takes NEURON numbers with it and nothing else.
            exact = Fraction(percent, 100) * whole / NEURON
            assert budget.total == -(-exact // step) * step

    def test_what_cannot_go_is_one_line(self, model):
        units = TestTarget().units(model, NeuronScope.GLOBAL, Constraints())
        # 24,192 of 30,088 numbers are neurons: 80.404%.
        assert (self.neurons * NEURON, self.whole(model)) == (24192, 30088)
        with pytest.raises(PlanError, match=r"the largest share that works is 80\.4%"):
            neuron_size_budget(units, model, params("99%"))
        assert neuron_size_budget(units, model, params("80.4%")).total == 504
        with pytest.raises(PlanError, match="'lots'"):
            neuron_size_budget(units, model, params("lots"))

    @pytest.mark.parametrize("case", SOURCES)
    def test_of_every_family_the_numbers_that_stay_are_those_of_the_budget(
        self, neuron_source, case
    ):
        model = neuron_source(case).described
        units, whole = TestTarget().units(model, NeuronScope.GLOBAL, Constraints()), 0
        for entry in model.checkpoint.tensors.values():
            if entry.dtype != "I64":  # ids of experts are no parameters
                whole += int(np.prod(entry.shape))
        budget = neuron_size_budget(units, model, params("5%"))
        left = {}
        for total in (budget.total, budget.total - 1):
            plan = TestTarget().plan(model, units, count_budget(units, total))
            left[total] = size_report(model, plan).params_after
        assert left[budget.total] <= 0.95 * whole < left[budget.total - 1]


def test_another_model_is_refused(model, checkpoint):
    other = keep_all(load_model_index(str(checkpoint("mixtral").path)))
    for sizes in (neuron_plan_sizes, size_report):
        with pytest.raises(PlanError, match="plan is for"):
            sizes(model, other)
