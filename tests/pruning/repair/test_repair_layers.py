"""Every layer of repairs of tiny models, by its file, against dense systems made by hand."""

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from neuron_cases import Source, make_source, zeroed
from nonuniform_cases import keeps_of, plan_of

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.corpora.sequences import TokenSequences
from analysis.drain import drain
from analysis.model.opening import load_model_index
from builders.repairs import token_sequences as equal_sequences
from builders.tokens import token_sequences
from families.built import stock_load
from families.configs import BY_NAME, Case
from families.physical import logits_of, physically_pruned
from families.tiny_models import tiny_model
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, fit_plan, layer_file
from pruning.records.repair import RepairStore
from pruning.records.repair_files import with_repair_files
from pruning.repair.effort import DAMPINGS
from pruning.repair.run import repair_plan
from tests.pruning.repair.references import (
    Dense,
    changed_tensors,
    down_of,
    run_layers,
    substituted,
    with_layers_of,
)

LENGTHS = (8, 5, 7, 8, 3, 8, 6) * 3
EQUAL = (equal_sequences(20, 8),)
TWO = (equal_sequences(14, 8), equal_sequences(7, 8, seed=1))
PADDED = (
    token_sequences(
        *(row[:n] for row, n in zip(equal_sequences(21, 8).rows, LENGTHS, strict=True))
    ),
)


@dataclass(frozen=True)
class Kind:
    """A family, a plan and text, and what must be true of the repair."""

    case: Case
    plan: str = "uneven"
    target: str = "layer"
    factor: float = 1.0  # of what reaches the layer's output
    corpora: tuple[TokenSequences, ...] = EQUAL
    dtype: str = "float64"

    def __str__(self) -> str:
        return f"{self.case.name}-{self.plan}"

    def plan_for(self, source: Source) -> PruningPlan:
        if self.plan == "neurons":
            return source.plan
        plan = plan_of(source.described, self.case, keeps_of(self.case))
        if self.plan == "second":  # the first layer stays whole
            return replace(plan, kept={self.case.sparse[1]: plan.kept[self.case.sparse[1]]})
        return plan


GRANITE = BY_NAME["granitemoe"]
MULTIPLIED = replace(GRANITE, settings={**GRANITE.settings, "residual_multiplier": 0.22})
KINDS = [
    Kind(BY_NAME["olmoe"], dtype="float32"),  # in grouped products
    Kind(BY_NAME["deepseek_v3-groups"]),  # groups, sigmoid gates, shared experts, a bias
    Kind(BY_NAME["glm4_moe"], corpora=PADDED),  # gates with a factor
    Kind(BY_NAME["qwen2_moe"], corpora=TWO),  # a dense layer between
    Kind(BY_NAME["qwen3_moe"], "second"),
    Kind(BY_NAME["qwen3_moe"], "neurons"),
    Kind(BY_NAME["gpt_oss"]),  # biases of experts, interleaved
    Kind(BY_NAME["gpt_oss"], "neurons"),
    Kind(BY_NAME["aria_text"], corpora=PADDED),  # stacked and transposed on disk
    Kind(MULTIPLIED, factor=0.22),  # stacked on disk
    Kind(BY_NAME["nemotron_h"]),  # without gate projections
    Kind(BY_NAME["nemotron_h-latent"], target="experts"),  # experts of another width
    Kind(BY_NAME["afmoe"], target="experts"),  # a norm after the block
    Kind(BY_NAME["gemma4_text"], target="experts"),  # the same, in no block
    Kind(BY_NAME["deepseek_v4"], target="experts"),  # several streams
]


def wide(case, path):
    """The model in float64, which grouped products do not support."""
    return stock_load(case, path, experts_implementation="eager")[0].double()


@dataclass(frozen=True)
class Repaired:
    """A repair, and its models in float64 as transformers loads them."""

    kind: Kind
    source: Source
    out: Path

    @cached_property
    def record(self):
        store, model = RepairStore([self.out / "stats"]), self.source.described
        settings = CalibrationSettings(
            *(8, 42, self.kind.dtype, "cpu"), batch_size=3, placement=Placement(stream_layers=True)
        )
        plan = fit_plan(self.kind.plan_for(self.source), model)
        return drain(repair_plan(model, plan, self.kind.corpora, settings, store))

    @cached_property
    def plan(self):
        plan = fit_plan(self.kind.plan_for(self.source), self.source.described)
        return with_repair_files(replace(plan, repair=self.record.reference), [self.out / "stats"])

    @cached_property
    def before(self):
        return wide(self.kind.case, self.source.path)

    @cached_property
    def changed(self):
        return substituted(self.source.path, self.plan.repair.folder, self.out / "substituted")

    @cached_property
    def after(self):
        return wide(self.kind.case, self.changed)

    def pruned(self, model):
        """A copy with nothing but what the plan keeps."""
        case = self.kind.case
        return physically_pruned(zeroed(model, case, self.plan), case, self.plan.kept)

    @cached_property
    def runs(self):
        """Layer -> the original and the pruned model there, on what is fitted and held out.

        Of the pruned one all earlier layers are repaired.
        """
        case, found = self.kind.case, {}
        rows = list(itertools.chain(*rows_of(self.kind.corpora)))
        originals = run_layers(self.before, case, pruned_layers(self), rows)
        for layer, original in originals.items():
            earlier = [index for index in case.sparse if index < layer]
            so_far = with_layers_of(self.before, self.after, case, earlier)
            found[layer] = original, run_layers(self.pruned(so_far), case, [layer], rows)[layer]
        return found

    def dense(self, layer, tokens=slice(None), damping=0.0):
        """The system of a layer, all earlier ones being repaired."""
        original, pruned = self.runs[layer]
        if self.kind.target == "layer":
            lacking = (original.stream - pruned.stream) / self.kind.factor
        else:
            lacking = original.experts - pruned.experts
        return Dense(pruned.scaled[tokens], lacking[tokens], damping)

    def change(self, layer):
        """(K, M, D): of the kept experts' down projections, by the file."""
        case, kept = self.kind.case, list(self.plan.kept[layer])
        return down_of(self.after, case, layer)[kept] - down_of(self.before, case, layer)[kept]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def subject(request, tmp_path_factory):
    parent = tmp_path_factory.mktemp(str(request.param))
    return Repaired(request.param, make_source(request.param.case, parent / "model"), parent)


def rows_of(corpora):
    """The sequences that are fitted on, and those that are held out: the last fifth of each."""
    fitted, held = [], []
    for corpus in corpora:
        count = len(corpus.rows) - max(1, len(corpus.rows) // 5)
        fitted += corpus.rows[:count]
        held += corpus.rows[count:]
    return fitted, held


def tokens_of(corpora):
    """Where the tokens that are fitted on stand among all of `rows_of`, and those held out."""
    count = sum(map(len, rows_of(corpora)[0]))
    return slice(count), slice(count, None)


def pruned_layers(subject):
    """Sparse layers from the first that loses something on."""
    plan, case = subject.plan, subject.kind.case
    first = next(
        layer
        for layer in case.sparse
        if len(plan.kept[layer]) < case.experts or plan.kept_neurons.get(layer)
    )
    return [layer for layer in case.sparse if layer >= first]


def test_the_record_says_what_was_fitted(subject):
    assert [layer.layer for layer in subject.record.layers] == pruned_layers(subject)
    tokens = sum(corpus.num_tokens for corpus in subject.kind.corpora)
    for layer in subject.record.layers:
        assert (layer.target, layer.tokens) == (subject.kind.target, tokens)
        assert (layer.damping is None) == (min(layer.held_out.values(), default=1) >= 1)
    fitted = {layer_file(layer.layer) for layer in subject.record.layers if layer.damping}
    assert set(subject.record.files) == fitted
    assert {file.name for file in subject.plan.repair.folder.iterdir()} == fitted


def test_a_file_holds_the_least_squares_of_its_layer(subject):
    for fit in subject.record.layers:
        change = subject.change(fit.layer)
        if fit.damping is None:
            assert not change.any()
            continue
        dense = subject.dense(fit.layer, damping=fit.damping)
        nothing, best = dense.objective(0 * change), dense.objective(dense.best)
        # Four iterations are nearly exact.
        assert best <= dense.objective(change) < best + 0.01 * (nothing - best)


def test_the_damping_is_chosen_on_sequences_that_are_not_fitted_on(subject):
    fitted, held = tokens_of(subject.kind.corpora)
    for fit in subject.record.layers:
        judge, system = subject.dense(fit.layer, held), subject.dense(fit.layer, fitted)
        nothing = judge.squared_error(0 * subject.change(fit.layer))
        if not nothing:  # no held-out token went to a removed expert
            assert (fit.held_out, fit.damping) == ({}, None)
            continue
        errors = {
            damping: judge.squared_error(replace(system, damping=damping).best) / nothing
            for damping in DAMPINGS
        }
        assert fit.held_out["0.1"] == pytest.approx(errors[0.1], rel=0.05)
        if fit.damping is None:
            assert min(errors.values()) > 1
        else:
            assert errors[fit.damping] < min(1.05 * min(errors.values()), 1)


def test_nothing_but_down_projections_of_kept_experts_changes(subject):
    layers = [layer.layer for layer in subject.record.layers if layer.damping]
    names = changed_tensors(subject.before, subject.after)
    assert len(names) == len(layers)
    assert all(name.endswith("experts.down_proj") for name in names)
    for layer in layers:
        before, after = (
            down_of(model, subject.kind.case, layer) for model in (subject.before, subject.after)
        )
        gone = sorted(set(range(len(before))) - set(subject.plan.kept[layer]))
        assert np.array_equal(before[gone], after[gone])
        for expert, kept in subject.plan.kept_neurons.get(layer, {}).items():
            gone = sorted(set(range(before.shape[1])) - set(kept))
            assert np.array_equal(before[expert][gone], after[expert][gone])


def test_masked_computes_what_the_new_tensors_do(subject):
    case = subject.kind.case
    original, _ = stock_load(case, subject.source.path)
    before = logits_of(original)
    with masked(original, subject.source.described.family, subject.plan):
        found = logits_of(original)
    assert torch.equal(found, logits_of(subject.pruned(stock_load(case, subject.changed)[0])))
    assert torch.equal(logits_of(original), before)


# One of each target, layout and way of the gates; the others are slow.
IN_BLOCKS = {"olmoe", "deepseek_v3-groups", "gpt_oss", "aria_text", "nemotron_h-latent"}
IN_BLOCKS |= {"gemma4_text", "deepseek_v4"}


@dataclass(frozen=True)
class Blocked:
    """A model whose repairs are compared, experts in blocks with whole layers."""

    kind: Kind
    source: Source
    folder: Path

    def files(self, name, **placed):
        """What a repair says of each layer, and its files."""
        plan = fit_plan(self.kind.plan_for(self.source), self.source.described)
        place = Placement(stream_layers=True, **placed)
        settings = CalibrationSettings(8, 42, "float32", "cpu", batch_size=3, placement=place)
        store = RepairStore([self.folder / name])
        described, corpora = self.source.described, self.kind.corpora
        record = drain(repair_plan(described, plan, corpora, settings, store))
        found = (self.folder / name).rglob("repairs/*/*.safetensors")
        return record.layers, {path.name: path.read_bytes() for path in found}

    @cached_property
    def whole(self):
        return self.files("whole")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=() if kind.case.name in IN_BLOCKS else pytest.mark.slow)
        for kind in KINDS
    ],
    ids=str,
)
def blocked(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocked")
    return Blocked(request.param, make_source(request.param.case, folder / "model"), folder)


@pytest.mark.parametrize(
    ("at_once", "on_disk"), [(3, True), pytest.param(1, False, marks=pytest.mark.slow)]
)
def test_experts_in_blocks_give_the_files_of_whole_layers(blocked, at_once, on_disk):
    assert blocked.whole[1]
    states = {"hidden_states_dir": blocked.folder / "states"} if on_disk else {}
    assert blocked.files(f"blocks-{at_once}", experts_at_once=at_once, **states) == blocked.whole


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe"])
def test_a_checkpoint_in_bfloat16_gets_the_nearest_weights(tmp_path, name):
    """As the same weights in float32 get them; the record says what rounding costs."""
    case, subjects = BY_NAME[name], {}
    for word, dtype in (("BF16", torch.bfloat16), ("F32", torch.float32)):
        path = tmp_path / word / "model"
        tiny_model(case).to(torch.bfloat16).to(dtype).save_pretrained(path)
        assert load_model_index(str(path)).dtype == word
        subjects[word] = Repaired(Kind(case), Source(case, path, None), tmp_path / word)
    narrow, exact = subjects["BF16"], subjects["F32"]
    fit = next(layer for layer in narrow.record.layers if layer.damping)
    twin = next(layer for layer in exact.record.layers if layer.layer == fit.layer)
    assert fit.damping == twin.damping
    kept = list(narrow.plan.kept[fit.layer])
    new, wanted = (down_of(subject.after, case, fit.layer)[kept] for subject in (narrow, exact))
    rounded = torch.from_numpy(wanted).bfloat16().double().numpy()
    assert (new != rounded).mean() < 0.01  # rounded once, not twice
    judge = narrow.dense(fit.layer, tokens_of(EQUAL)[1])
    lost = ((judge.matrix @ (new - wanted).reshape(judge.matrix.shape[1], -1)) ** 2).sum()
    assert fit.rounding == pytest.approx(lost / (judge.lacking**2).sum(), rel=0.01)
    assert twin.rounding < 1e-9 < fit.rounding < 1e-3
