"""Every family against the same questions, on tiny random models that transformers builds.

What is expected of a family is written by hand in `configs`, `physical` and `plain`, none of which
knows the program's tables.
"""

import itertools
import json
import math
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from calibrations import calibrated, make_sequences
from exports import export

from analysis.calibration import weights
from analysis.calibration.experts import batch_mask, collecting
from analysis.calibration.sums import sums_of
from analysis.calibration.weights import measure_weights
from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.stats.columns import LARGEST, MOMENT_COLUMNS
from analysis.stats.reading import load_expert_stats, read_vectors
from families.built import Built, stock_load
from families.configs import DISTINCT, EVERY, KINDS, SOURCES, Case, cases_where
from families.physical import (
    block_of,
    choice_of,
    layers_of,
    logits_of,
    physically_pruned,
    router_of,
)
from families.plain import COLUMNS, matrices_of, overheard, plain_experts
from families.settings import HIDDEN, VOCAB
from pruning.engine.masking import masked
from pruning.plan.plan import PruningPlan, keep_all, model_ref, with_top_k
from pruning.surgery.manifest import MANIFEST_NAME
from pruning.surgery.verify import verify_export

# Where equality of bits is not asked for: how far apart logits may be, and why.
MASKING_TOLERANCE: dict[str, float] = {}  # none: the same numbers are added in the same order
RELOAD_TOLERANCE: dict[str, float] = {}  # none, for the same reason

# Of statistics: its activation works in float32 in a float64 model too.
STATISTICS_TOLERANCE = {"beam": 1e-6}
# Of sequences alone against those in a batch. Routers round to float32, also in a float64 model, so
# what comes after them differs; so does a linear attention that works in float32 in chunks, whose
# rounding depends on what the batch is padded to.
ALONE_TOLERANCE = {"bailing_hybrid": 4e-6}

PROBLEMS = ("missing_keys", "unexpected_keys", "mismatched_keys")
LENGTHS = (7, 4, 6, 2, 5)
LAYOUTS = [
    pytest.param(case, layout, id=f"{case}-{layout}", marks=marks)
    for case, marks in ((*source.values, source.marks) for source in SOURCES)
    for layout in (("experts", "stacked") if case.fused_too else ("experts",))
]
# For what is general: in the default run one of each kind stands for the others.
SLOW = pytest.mark.slow
LAYOUTS_OF_KINDS = [
    layout if layout.values[0] in KINDS else pytest.param(*layout.values, id=layout.id, marks=SLOW)
    for layout in LAYOUTS
]


@pytest.fixture(params=SOURCES)
def source(request, built) -> Built:
    return built(request.param)


@pytest.fixture(params=DISTINCT)
def kind(request, built) -> Built:
    return built(request.param)


def experts_of(model, case):
    return {layer: block_of(model, case, layer).experts for layer in case.sparse}


def plan_of(described, case: Case, keeps) -> PruningPlan:
    """Keep so many experts in each layer, always other ones, the same number in each group."""
    kept = {}
    size = case.experts // case.groups
    for layer, keep in zip(case.sparse, keeps, strict=True):
        seeded = torch.Generator().manual_seed(layer + 1)
        ids = [
            group * size + number
            for group in range(case.groups)
            for number in torch.randperm(size, generator=seeded)[: keep // case.groups].tolist()
        ]
        kept[layer] = tuple(sorted(ids))
    return PruningPlan(model_ref(described), kept)


def keeps_of(case: Case) -> dict[str, tuple[int, ...]]:
    """Numbers of kept experts by layer: the same in all, and as different as they can be."""
    half = case.experts // case.groups // 2 * case.groups
    most, least = case.experts - case.groups, case.smallest
    mixed = itertools.islice(itertools.cycle((least, most)), len(case.sparse))
    return {"uniform": (half,) * len(case.sparse), "mixed": tuple(mixed)}


def assert_sums(run, case: Case, wanted, tolerance):
    table = load_expert_stats(run).table
    grid = list(itertools.product(case.sparse, range(case.experts)))
    assert list(zip(table["layer"], table["expert"], strict=True)) == grid
    assert table["num_tokens"].sum() == len(case.sparse) * case.top_k * sum(LENGTHS)
    assert set(COLUMNS.values()) == set(MOMENT_COLUMNS)
    for key, column in COLUMNS.items():
        expected = [wanted[layer].sums[expert][key] for layer, expert in grid]
        assert table[column].tolist() == pytest.approx(expected, rel=tolerance, abs=0), column
    largest = [wanted[layer].largest[expert] for layer, expert in grid]
    assert table[LARGEST].tolist() == pytest.approx(largest, rel=tolerance, abs=0)
    vectors = torch.cat([wanted[layer].vectors for layer in case.sparse]).numpy()
    allowed = {"rtol": tolerance, "atol": tolerance * np.abs(vectors).max()}
    np.testing.assert_allclose(read_vectors(run), vectors, **allowed)


def assert_close(found, wanted, tolerance):
    if tolerance == 0:
        assert torch.equal(found, wanted), (found - wanted).abs().max()
    else:
        assert (found - wanted).abs().max() <= tolerance


class TestConformance:
    """What every family must satisfy."""

    @pytest.mark.parametrize(("case", "layout"), LAYOUTS)
    def test_headers_tell_what_the_loaded_model_is(self, built, case, layout):
        source = built(case)
        described, model = source.described(layout), source.model
        found = {
            int(re.search(r"layers\.(\d+)\.", name)[1]): (name, module)
            for name, module in model.named_modules()
            if hasattr(module, "has_gate") and hasattr(module, "num_experts")
        }
        assert tuple(sorted(found)) == case.sparse
        assert tuple(layer.index for layer in described.layers) == case.sparse
        assert described.num_experts == len(case.sparse) * case.experts
        assert (described.dtype, described.hidden_size) == ("F32", HIDDEN)
        for layer in described.layers:
            name, experts = found[layer.index]
            router = router_of(model, case, layer.index)
            assert layer.num_experts == experts.num_experts == case.experts
            assert choice_of(model, case, layer.index) == (case.experts, case.top_k)
            assert layer.top_k == case.top_k
            family = described.family
            block = model.get_submodule(family.block_module(layer.index))
            assert block.get_submodule("experts") is experts, name
            assert block.get_submodule(family.router) is router

    def test_statistics_equal_a_double_loop(self, source, tmp_path):
        case, sequences = source.case, make_sequences(LENGTHS, vocabulary=VOCAB)
        with overheard(case.model_type, case.sparse, padding=0) as heard:
            run = calibrated(source.described(), tmp_path, sequences, seq_len=7, dtype="float64")
        assert run.manifest.corpora[0].num_padded == (3 * 7 + 2 * 5) - sum(LENGTHS)
        assert_sums(run, case, heard, STATISTICS_TOLERANCE.get(case.model_type, 1e-9))

        # The whole forward in the double loop, and each sequence alone, so that nothing is padded.
        model = stock_load(case, source.paths["experts"])[0].double()
        with torch.no_grad(), plain_experts(case.model_type, experts_of(model, case)) as plain:
            for row in sequences.rows:
                model(input_ids=torch.from_numpy(row).long()[None], use_cache=False)
        assert_sums(run, case, plain, ALONE_TOLERANCE.get(case.model_type, 2e-6))

    @pytest.mark.parametrize("case", EVERY)
    def test_collecting_leaves_the_logits_alone(self, built, case):
        source = built(case)
        described, model = source.described(), stock_load(case, source.paths["experts"])[0]
        ids = torch.randint(3, VOCAB, (3, 8), generator=torch.Generator().manual_seed(7))
        mask = torch.ones(3, 8, dtype=torch.bool)
        mask[1, 5:] = mask[2, 2:] = False
        batch = {"input_ids": ids, "attention_mask": mask.long(), "use_cache": False}
        before = model.config.get_text_config()._experts_implementation
        with torch.no_grad():
            sums = sums_of(described)
            with collecting(model, described, sums):
                batch_mask(mask)
                ours = model(**batch).logits
            assert model.config.get_text_config()._experts_implementation == before
            model.set_experts_implementation("eager")
            stock = model(**batch).logits
        assert_close(ours, stock, 0)

    @pytest.mark.parametrize("counts", ["uniform", "mixed"])
    def test_masked_is_physically_pruned(self, source, counts):
        case, described, model = source.case, source.described(), source.model
        plan = plan_of(described, case, keeps_of(case)[counts])
        before = logits_of(model)
        with masked(model, described.family, plan):
            inside = logits_of(model)
        pruned = logits_of(physically_pruned(model, case, plan.kept))
        assert_close(inside, pruned, MASKING_TOLERANCE.get(case.model_type, 0))
        assert not torch.allclose(inside, before, atol=1e-3)
        assert torch.equal(logits_of(model), before)

    # But where a router selects a number of its own, or by a table.
    @pytest.mark.parametrize(
        "case", cases_where(lambda case: case.model_type != "phimoe" and not case.hashed)
    )
    def test_a_smaller_top_k_is_that_of_the_configuration(self, built, tmp_path, case):
        source, fewer = built(case), case.top_k - 1
        described, family = source.described(), source.described().family
        shutil.copytree(source.paths["experts"], tmp_path / "fewer")
        config = json.loads((tmp_path / "fewer/config.json").read_text())
        edited = json.dumps(family.config_with_top_k(config, fewer))
        (tmp_path / "fewer/config.json").write_text(edited)
        loaded, _ = stock_load(case, tmp_path / "fewer")
        if not family.shares_top_k:
            for layer in case.sparse:
                assert choice_of(loaded, case, layer) == (case.experts, fewer)
        before = logits_of(source.model)
        with masked(source.model, family, with_top_k(keep_all(described), described, fewer)):
            inside = logits_of(source.model)
        assert_close(inside, logits_of(loaded), MASKING_TOLERANCE.get(case.model_type, 0))
        assert not torch.allclose(inside, before, atol=1e-3)
        assert torch.equal(logits_of(source.model), before)
        # The first of these layers alone, in a model whose other layers are as they were.
        first = case.sparse[0]
        for layer in case.sparse[1:]:
            layers_of(loaded)[layer] = layers_of(source.model)[layer]
        with masked(source.model, family, replace(keep_all(described), top_k={first: fewer})):
            inside = logits_of(source.model)
        assert_close(inside, logits_of(loaded), MASKING_TOLERANCE.get(case.model_type, 0))
        assert torch.equal(logits_of(source.model), before)

    def test_masking_is_exact_where_accelerate_offloads(self, kind):
        case, described = kind.case, kind.described()
        plan = plan_of(described, case, keeps_of(case)["mixed"])
        wanted = logits_of(physically_pruned(kind.model, case, plan.kept))
        offloaded = cpu_offload(stock_load(case, kind.paths["experts"])[0], "cpu")
        before = logits_of(offloaded)
        experts = experts_of(offloaded, case)[case.sparse[0]]
        assert {tensor.device.type for tensor in experts.parameters()} == {"meta"}
        with masked(offloaded, described.family, plan):
            inside = logits_of(offloaded)
        assert_close(inside, wanted, MASKING_TOLERANCE.get(case.model_type, 0))
        assert torch.equal(logits_of(offloaded), before)

    @pytest.mark.parametrize(("case", "layout"), LAYOUTS)
    def test_export_reloads_as_masked(self, built, tmp_path, case, layout):
        source = built(case)
        described = source.described(layout)
        plan = plan_of(described, case, keeps_of(case)["uniform"])
        export(described, plan, tmp_path / "out")
        exported, info = stock_load(case, tmp_path / "out")
        assert not any(info[kind] for kind in PROBLEMS)
        for layer in case.sparse:
            assert block_of(exported, case, layer).experts.num_experts == len(plan.kept[layer])
        with masked(source.model, described.family, plan):
            wanted = logits_of(source.model)
        assert_close(logits_of(exported), wanted, RELOAD_TOLERANCE.get(case.model_type, 0))
        again = load_model_index(str(tmp_path / "out")).layers
        wanted = [(index, len(plan.kept[index]), case.top_k) for index in case.sparse]
        assert [(layer.index, layer.num_experts, layer.top_k) for layer in again] == wanted

    def test_the_program_verifies_its_export(self, kind, tmp_path):
        plan = plan_of(kind.described(), kind.case, keeps_of(kind.case)["uniform"])
        export(kind.described(), plan, tmp_path / "out")
        original = kind.paths["experts"]
        report = drain(verify_export(tmp_path / "out", level="logits", source=original, tokens=24))
        assert report.ok, [check for check in report.checks if not check.ok]
        assert report.max_abs_diff <= RELOAD_TOLERANCE.get(kind.case.model_type, 0)

    def test_bfloat16_export_reloads_as_masked(self, source, tmp_path):
        # Some families keep a few tensors in float32; the export must keep them so.
        case = source.case
        narrow, _ = stock_load(case, source.paths["experts"], dtype=torch.bfloat16)
        narrow.save_pretrained(tmp_path / "source")
        described = load_model_index(str(tmp_path / "source"))
        plan = plan_of(described, case, keeps_of(case)["uniform"])
        export(described, plan, tmp_path / "out")
        exported, info = stock_load(case, tmp_path / "out", dtype="auto")
        assert not any(info[kind] for kind in PROBLEMS)
        with masked(narrow, described.family, plan):
            wanted = logits_of(narrow)
        assert torch.equal(logits_of(exported), wanted)
        before, after = dict(narrow.named_parameters()), dict(exported.named_parameters())
        assert {n: p.dtype for n, p in after.items()} == {n: p.dtype for n, p in before.items()}

    @pytest.mark.parametrize(("case", "layout"), LAYOUTS_OF_KINDS)
    def test_keep_all_is_byte_equal(self, built, tmp_path, case, layout):
        source, out = built(case), tmp_path / "out"
        described = source.described(layout)
        manifest = export(described, keep_all(described), out)
        assert all(shard.cut == shard.dropped == 0 for shard in manifest.shards)
        names = {file.name for file in source.paths[layout].iterdir()}
        for name in names:
            assert (out / name).read_bytes() == (source.paths[layout] / name).read_bytes(), name
        assert {file.name for file in out.iterdir()} - names == {MANIFEST_NAME, "README.md"}

    @pytest.mark.parametrize(("case", "layout"), LAYOUTS_OF_KINDS)
    def test_weight_statistics_are_those_of_the_module(self, built, monkeypatch, case, layout):
        # Less than a matrix at once, so that halves of stacks are told apart in every chunk.
        monkeypatch.setattr(weights, "_CHUNK_BYTES", 1000)
        source = built(case)
        table = drain(measure_weights(source.described(layout)))
        found = {
            (row.layer, row.expert, row.projection): (row.l1, row.l2_squared, row.numel)
            for row in table.itertuples()
        }
        wanted = {}
        for layer, experts in experts_of(source.model, case).items():
            for expert in range(case.experts):
                matrices = matrices_of(case.model_type, experts, expert)
                for name in ("gate", "up", "down"):
                    if (matrix := getattr(matrices, name)) is not None:
                        values = matrix.double().flatten().tolist()
                        l1 = math.fsum(map(abs, values))
                        l2 = math.fsum(value * value for value in values)
                        wanted[layer, expert, name] = (l1, l2, len(values))
        assert found.keys() == wanted.keys()
        for key, (l1, l2, numel) in wanted.items():
            assert found[key] == (pytest.approx(l1, rel=1e-6), pytest.approx(l2, rel=1e-6), numel)
