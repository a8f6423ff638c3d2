"""Statistic groups and token shards: what is chosen, kept, reused, merged, and read in part."""

import numpy as np
import pandas as pd
import pytest
import torch
from calibrations import LENGTHS, calibrated, calibration, make_sequences, watched

from analysis.calibration.experts import batch_mask, collecting
from analysis.calibration.sums import sums_of
from analysis.corpora.sequences import TOKEN_SHARDS, TokenSequences
from analysis.errors import StatsError
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.ranking.proxy import proxy_overlap
from analysis.stats.columns import LARGEST, MOMENT_COLUMNS
from analysis.stats.manifest import COACTIVATION, EXPERTS, ROUTER, SHARDS, VECTORS
from analysis.stats.merging import merge_runs
from analysis.stats.reading import load_expert_stats, read_table, verify_run
from analysis.stats.shards import SHARD_INDEX, stats_at
from analysis.stats.store import StatsStore, read_run
from builders import TOP_K, VOCAB, tiny_checkpoint
from builders.statistics import stats_of
from pruning.requests.calibration import CalibrateRequest
from pruning.spec.base import validated

ALL = ("routed", "router", "damage")


def run_of(tiny, stats, sequences=None, **settings):
    return calibrated(tiny, stats, sequences, **{"dtype": "float64", "groups": ALL} | settings)


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    return run_of(tiny, tmp_path_factory.mktemp("stats"))


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["routed"], ("routed",)),
        ([], ("routed",)),
        ("damage", ("routed", "damage")),
        (["damage", "router", "routed", "damage"], ALL),
    ],
)
def test_routed_is_always_on_and_order_does_not_matter(names, groups):
    asked = {"model": "demo", "corpus": "demo-code"}
    assert validated(CalibrateRequest, {**asked, "groups": names}).collected == groups


def test_a_run_has_the_files_of_its_groups(run, tiny, tmp_path):
    assert run.manifest.groups == ALL
    assert set(run.manifest.files) == {EXPERTS, VECTORS, SHARDS, ROUTER, COACTIVATION}
    assert read_run(run.path) == run
    alone = run_of(tiny, tmp_path, groups=("routed",))
    assert alone.manifest.groups == ("routed",)
    assert set(alone.manifest.files) == {EXPERTS, VECTORS, SHARDS}
    assert "damage" not in load_expert_stats(alone).table
    # The other groups leave the routed sums as they are, but for rounding in float64.
    shared = load_expert_stats(run).table.drop(columns="damage")
    pd.testing.assert_frame_equal(load_expert_stats(alone).table, shared, rtol=1e-12)
    verify_run(alone)
    extra = run.manifest.made["damage"]["extra_experts_per_token"]
    assert extra == {"0": 1.0, "2": 1.0, "3": 1.0}


def test_a_run_with_more_groups_serves(tiny, tmp_path):
    more = run_of(tiny, tmp_path, groups=("routed", "damage"))
    again, steps = watched(calibration(tiny, tmp_path, dtype="float64"))
    assert again == more
    assert [step.phase for step in steps] == ["cached"]
    whole = run_of(tiny, tmp_path)
    assert whole.path != more.path
    # Two would serve: the smaller one does.
    assert calibrated(tiny, tmp_path, dtype="float64") == more
    other = calibrated(tiny, tmp_path, make_sequences(seed=6), dtype="float64")
    assert other.manifest.groups == ("routed",)


def test_totals_are_the_shards_added_one_after_the_other(run):
    table, shards = load_expert_stats(run).table, read_table(run, SHARDS)
    assert tuple(shards.columns) == (*SHARD_INDEX, *MOMENT_COLUMNS, "damage")
    assert shards["shard"].tolist() == list(range(TOKEN_SHARDS)) * len(table)
    for column in (*MOMENT_COLUMNS, "damage"):
        for number, total in enumerate(table[column]):
            added = 0.0
            for value in shards[column].iloc[number * TOKEN_SHARDS : (number + 1) * TOKEN_SHARDS]:
                added += value
            assert added == total, column
    assert shards["num_tokens"].dtype == table["num_tokens"].dtype == np.int64


@pytest.mark.parametrize("parts", [1, 3])
def test_a_part_is_a_calibration_on_the_first_tokens(run, tiny, tmp_path, parts):
    # A causal model computes the same for a token whatever comes after it.
    total = sum(LENGTHS)
    wanted = -(-parts * total // 8)  # 41 tokens: 6, 11, 16, 21, 36
    left, rows = wanted, []
    for row in make_sequences().rows:
        rows.append(row[:left])
        left -= len(rows[-1])
    kept = tuple(row for row in rows if len(row))
    start = TokenSequences("letters.jsonl", kept, len(kept), 0)
    alone = load_expert_stats(run_of(tiny, tmp_path, start))
    part = stats_at(run, parts)
    assert part.manifest.num_tokens == alone.manifest.num_tokens == wanted
    assert part.manifest.corpora[0].num_counted == wanted
    assert part.table["num_tokens"].tolist() == alone.table["num_tokens"].tolist()
    assert part.table["num_tokens"].sum() == 3 * TOP_K * wanted
    columns = [name for name in part.table.columns if name != "num_tokens"]
    assert set(columns) == set(alone.table.columns) - {"num_tokens", "vector_sum_sq", LARGEST}
    # The router rounds gate weights to float32, and not alike in batches of other sizes.
    np.testing.assert_allclose(part.table[columns], alone.table[columns], rtol=1e-6)


def test_a_merge_adds_every_group_shard_by_shard(run, tiny, tmp_path):
    other = run_of(tiny, tmp_path, make_sequences(seed=9, corpus="other.jsonl"))
    merged = merge_runs([run, other], tmp_path)
    assert merged.manifest.groups == ALL
    for name, index in (
        (SHARDS, list(SHARD_INDEX)),
        (ROUTER, ["layer", "expert"]),
        (COACTIVATION, ["layer", "expert", "other"]),
    ):
        first, second, both = (read_table(folder, name) for folder in (run, other, merged))
        sums = first.set_index(index) + second.set_index(index)
        pd.testing.assert_frame_equal(both.set_index(index), sums, check_exact=True)
    for parts in (1, 4):
        pieces = [stats_at(folder, parts) for folder in (run, other)]
        part = stats_at(merged, parts)
        assert part.manifest.num_tokens == sum(piece.manifest.num_tokens for piece in pieces)
        expected = pieces[0].table["damage"] + pieces[1].table["damage"]
        np.testing.assert_allclose(part.table["damage"], expected, rtol=1e-14)
    shards = read_table(merged, SHARDS).groupby(["layer", "expert"])["g0_f1"]
    assert load_expert_stats(merged).table["g0_f1"].tolist() == [
        np.add.accumulate(values.to_numpy())[-1] for _, values in shards
    ]


def test_overlap_with_the_proxy_by_hand():
    # Ranked by damage 5, 4, 7, 6 go first; by the proxy 5, 6, 7, 4.
    stats = stats_of(
        damage=[9.0, 8, 7, 6, 2, 1, 4, 3], applied_g1_f1=[9.0, 8, 7, 6, 4, 1, 2, 3], num_tokens=4
    )
    table = proxy_overlap(stats)
    assert table["sparsity"].tolist() == [0.25, 0.5]
    assert table["overlap"].tolist() == [0.5, 1.0]
    assert table["chance"].tolist() == [0.25, 0.5]


def test_the_shipped_runs_have_every_group():
    runs = [run for run in StatsStore(SHIPPED_STATS).runs() if run.manifest.kind == "routed"]
    assert len(runs) == 3
    for run in runs:
        assert set(run.manifest.groups) >= {*ALL, "dense"}
        table = proxy_overlap(load_expert_stats(run))
        # The paper finds 0.8 to 0.95; far above two random sets in any case.
        assert (table["overlap"] > table["chance"] + 0.25).all()
        assert stats_at(run, 1).manifest.num_tokens == 65536 // 8
    files = [path.stat().st_size for run in runs for path in run.path.iterdir()]
    # 1.4 MB of each are the samples of the group dense.
    assert sum(files) < 7_500_000


def collect(path, damage, mask=None, groups=(), dtype=torch.float32):
    """The sums of one batch through a model that was damaged after it was described."""
    model = tiny_checkpoint(path, "olmoe", dtype=dtype).model
    described = load_model_index(str(path))
    damage(model)
    ids = torch.randint(3, VOCAB, (2, 6), generator=torch.Generator().manual_seed(1))
    sums = sums_of(described, groups)
    with torch.no_grad(), collecting(model, described, sums):
        batch_mask(mask)
        model(input_ids=ids, use_cache=False)
    return sums.tensors()


def overflowing(model):
    experts = model.get_submodule("model.layers.1.mlp.experts")
    experts.down_proj.data[5] = torch.nan


def arriving(model):
    model.model.layers[1].input_layernorm.weight.data[:] = torch.inf


def routing_nowhere(model):
    model.get_submodule("model.layers.1.mlp.gate").weight.data[2] = torch.inf


ROUTER_SAYS = r"The router of layer 1 gave values .* in float32; look for such values"
NOT_FINITE = [
    (overflowing, torch.float32, (), r"Expert 5 of layer 1 gave values .* in float32; look for"),
    (overflowing, torch.float16, (), r"Expert 5 of layer 1 .* in float16; .*--dtype bfloat16"),
    (arriving, torch.float32, (), r"Layer 1 received values that are not finite"),
    *(
        (routing_nowhere, torch.float32, groups, ROUTER_SAYS)
        for groups in ((), ("router",), ("damage",))
    ),
]


@pytest.mark.parametrize(("damaged", "dtype", "groups", "message"), NOT_FINITE)
def test_values_that_are_no_numbers_name_the_layer(tmp_path, damaged, dtype, groups, message):
    with pytest.raises(StatsError, match=message):
        collect(tmp_path, damaged, groups=groups, dtype=dtype)


def test_all_parts_are_the_run_itself(run):
    whole = stats_at(run, 8)
    pd.testing.assert_frame_equal(whole.table, load_expert_stats(run).table, check_exact=True)
    assert whole.manifest == run.manifest
    for parts in (0, 9):
        with pytest.raises(StatsError, match="use 1 to 8"):
            stats_at(run, parts)


def test_a_merge_leaves_out_a_group_that_one_run_lacks(run, tiny, tmp_path):
    sequences = make_sequences(seed=9, corpus="other.jsonl")
    other = run_of(tiny, tmp_path, sequences, groups=("routed", "router"))
    merged = merge_runs([run, other], tmp_path)
    assert merged.manifest.groups == ("routed", "router")
    assert merged.manifest.made["groups_left_out"] == ["damage"]
    assert set(merged.manifest.files) == {EXPERTS, VECTORS, SHARDS, ROUTER, COACTIVATION}
    assert "damage" not in load_expert_stats(merged).table
    assert "damage" not in read_table(merged, SHARDS)


@pytest.mark.parametrize("groups", [(), ("router", "damage")], ids=str)
@pytest.mark.parametrize("damaged", [overflowing, routing_nowhere])
def test_values_that_do_not_count_may_be_anything(tmp_path, damaged, groups):
    sums = collect(tmp_path, damaged, torch.zeros(2, 6, dtype=torch.bool), groups)
    # Nothing counts, so nothing is added.
    assert sums.keys() >= {"moments.1", "vectors.1"}
    assert [name for name, tensor in sums.items() if tensor.count_nonzero()] == []
