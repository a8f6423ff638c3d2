"""Which runs a criterion ranks by, and what a calibration is said to take."""

from dataclasses import replace

import numpy as np
import pytest
from calibrations import make_settings

from analysis.calibration.manifest import corpus_ref
from analysis.calibration.memory import active_params, estimate
from analysis.calibration.weights import weight_statistics
from analysis.corpora.spec import CorpusWeight, parse_corpus_weight
from analysis.criteria import CRITERIA
from analysis.drain import drain
from analysis.errors import StatsError
from analysis.model.opening import load_model_index
from analysis.progress import cost
from analysis.ranking.choose import choose_stats, routed_runs, run_by_corpus
from analysis.stats.manifest import measured_model
from analysis.stats.merging import merge_runs
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore
from analysis.stats.writing import save_expert_stats
from builders import NUM_EXPERTS, TOP_K, tiny_checkpoint
from builders.statistics import random_stats, run_manifest
from builders.tokens import token_sequences


@pytest.fixture
def model(tmp_path):
    tiny_checkpoint(tmp_path / "tiny-model", "olmoe")
    return load_model_index(str(tmp_path / "tiny-model"))


@pytest.fixture
def store(tmp_path):
    return StatsStore(tmp_path / "stats")


@pytest.fixture
def calibrated(model, store):
    """A run of this model on a corpus, made of random sums."""
    counts = tuple(layer.num_experts for layer in model.layers)

    def make(corpus, seed=1, tokens=40, groups=("routed",), dtype="float32"):
        manifest = run_manifest(counts=counts, corpora=(corpus,), identity=f"{corpus}-{seed}")
        (ref,) = manifest.corpora
        manifest = replace(
            manifest,
            model=measured_model(model),
            corpora=(replace(ref, num_tokens=tokens),),
            groups=groups,
            settings={**manifest.settings, "dtype": dtype},
        )
        stats = random_stats(seed, counts=counts).table
        layers = [layer.index for layer in model.layers]
        table = stats.assign(layer=np.repeat(layers, counts))
        if "damage" in groups:
            table = table.assign(damage=np.arange(len(table), dtype=float))
        vectors = np.sqrt(stats[["vector_sum_sq"]].to_numpy())
        return save_expert_stats(store.target, manifest, table, vectors)

    return make


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prose", CorpusWeight("prose", 1.0)),
        ("prose:2", CorpusWeight("prose", 2.0)),
        ("prose:0.5", CorpusWeight("prose", 0.5)),
        ("a:b:3", CorpusWeight("a:b", 3.0)),
        ("hub:owner/name", CorpusWeight("hub:owner/name", 1.0)),
        ("run:2.jsonl", CorpusWeight("run:2.jsonl", 1.0)),
        ("run:2.jsonl:0.5", CorpusWeight("run:2.jsonl", 0.5)),
        ("[a](http://b.c)", CorpusWeight("[a](http://b.c)", 1.0)),
    ],
)
def test_a_corpus_may_have_a_weight(text, expected):
    assert parse_corpus_weight(text) == expected


@pytest.mark.parametrize("weight", ["", "much", "0", "-1", "nan", "inf"])
def test_a_weight_that_is_no_positive_number_is_refused(weight):
    with pytest.raises(StatsError, match="weight"):
        parse_corpus_weight(f"prose:{weight}")


def test_corpora_or_runs_are_chosen_from(model, store, calibrated):
    code, prose = calibrated("code"), calibrated("prose")
    parts = routed_runs(store, model, [CorpusWeight("prose"), CorpusWeight("code", 2.0)], ())
    assert [(part.run, part.weight) for part in parts] == [(prose, 1.0), (code, 2.0)]
    assert [part.run for part in routed_runs(store, model, (), [code.manifest.run_id])] == [code]


def test_a_shipped_run_counts_before_larger_and_newer_own_ones(model, store, calibrated, tmp_path):
    shipped = calibrated("prose", seed=1, tokens=400)
    both = StatsStore(tmp_path / "own", store.target)
    (tmp_path / "own").mkdir()
    larger, damage = (
        calibrated("prose", seed=2, tokens=900),
        calibrated("prose", seed=3, tokens=300, groups=("routed", "damage")),
    )
    for run in (larger, damage):
        run.path.rename(tmp_path / "own" / run.path.name)

    def chosen(name, *run_ids):
        found = choose_stats(CRITERIA[name], both, model, (), run_ids)
        (run,) = found.runs
        return run.manifest.run_id, found.notes

    name, (note,) = chosen("reap")
    assert name == shipped.manifest.run_id
    assert f"prose has 3 runs; using {name}, which ships; choose another" in note
    # What is asked for is taken: by its id, or by a criterion that the shipped run cannot serve.
    assert chosen("reap", larger.manifest.run_id) == (larger.manifest.run_id, ())
    assert chosen("damage")[0] == damage.manifest.run_id


def test_of_one_corpus_the_newest_of_the_largest_runs_counts_and_is_said(model, store, calibrated):
    def chosen(name, *run_ids):
        found = choose_stats(CRITERIA[name], store, model, (), run_ids)
        return *found.runs, *found.notes

    first = calibrated("prose", seed=1, groups=("routed", "damage"), tokens=900)
    assert chosen("reap") == (first,)
    second = calibrated("prose", seed=2, tokens=400)
    used = f"prose has 2 runs; using {first.manifest.run_id}, the largest"
    assert chosen("reap") == (first, f"{used}; choose another with `moeprune plan --run ID`")
    run, note = chosen("damage")
    assert run == first
    assert f"{used} of those with what" in note
    third = calibrated("prose", seed=3, tokens=900)
    run, note = chosen("reap")
    assert run == third
    assert "the newest of the largest" in note
    assert chosen("reap", second.manifest.run_id) == (second,)


def test_a_newer_run_in_another_dtype_does_not_break_a_blend(model, store, calibrated):
    prose, code = calibrated("prose", seed=1), calibrated("code", seed=2)
    newer = calibrated("prose", seed=3, dtype="bfloat16")
    both = [CorpusWeight("prose"), CorpusWeight("code")]
    chosen = choose_stats(CRITERIA["reap"], store, model, both)
    assert chosen.runs == (prose, code)
    assert "the newest of the largest in float32" in chosen.notes[0]
    # Once both corpora have it, the newer dtype is used.
    other = calibrated("code", seed=4, dtype="bfloat16")
    assert choose_stats(CRITERIA["reap"], store, model, both).runs == (newer, other)
    # More tokens go before all of it.
    large = calibrated("prose", seed=5, tokens=900)
    assert [part.run for part in routed_runs(store, model, both[:1], ())] == [large]


def test_a_merged_run_is_chosen_by_id(model, store, calibrated):
    runs = [calibrated("prose", seed=1), calibrated("code", seed=2)]
    merged = merge_runs(runs, store.target)
    assert set(run_by_corpus([*runs, merged])) == {"prose", "code"}
    (part,) = routed_runs(store, model, (), [merged.manifest.run_id])
    assert part.run == merged


def test_a_corpus_file_is_known_by_its_name(model, store, calibrated):
    run = calibrated("notes.txt")
    for text in ("notes.txt", "somewhere/else/notes.txt"):
        assert routed_runs(store, model, [CorpusWeight(text)], ())[0].run == run


def test_without_runs_the_command_that_makes_them_is_named(model, store):
    for name, command in (("reap", "calibrate MODEL"), ("aimer", "weights MODEL`")):
        with pytest.raises(StatsError, match=f"run `moeprune {command}"):
            choose_stats(CRITERIA[name], store, model)


def test_a_criterion_gets_the_statistics_that_it_reads(model, store, calibrated):
    runs = calibrated("code", seed=1), calibrated("prose", seed=2)
    weights = drain(weight_statistics(model, store))
    chosen = choose_stats(
        CRITERIA["man"], store, model, [CorpusWeight("code", 2.0), CorpusWeight("prose")]
    )
    tables = [load_expert_stats(run).table for run in runs]
    # A token of code counts twice as much as one of prose; which number of tokens that makes is
    # the blend's affair, so the two are compared by the mean that MAN takes.
    first = [table["layer"] == table["layer"].min() for table in tables]
    tokens = [table["num_tokens"][rows].sum() for table, rows in zip(tables, first, strict=True)]
    mixed = {
        column: 2 / tokens[0] * tables[0][column] + 1 / tokens[1] * tables[1][column]
        for column in ("g0_f1", "num_tokens")
    }
    score = CRITERIA["man"].score(chosen.stats.table, "applied")
    expected = (mixed["g0_f1"] / mixed["num_tokens"]).fillna(0)  # never routed scores 0
    assert score.tolist() == pytest.approx(expected.tolist())
    assert chosen.runs == runs
    assert chosen.corpora == ("code:2", "prose")
    assert choose_stats(CRITERIA["aimer"], store, model).runs == (weights,)


def threes(*lengths):
    return token_sequences(*([3] * length for length in lengths))


@pytest.mark.parametrize("fused", [False, True], ids=["per-expert", "fused"])
def test_active_parameters_by_hand(tmp_path, fused):
    # d = 16, width 24, 2 heads of 8, 1 key-value head, 7 experts of which 2 run, 3 layers.
    # Attention: q and o 16 x 16, k and v 8 x 16. Router 7 x 16. Experts 2 x 3 x 16 x 24.
    tiny_checkpoint(tmp_path, "olmoe", fused=fused)
    layer = 2 * 16 * 16 + 2 * 8 * 16 + 7 * 16 + TOP_K * 3 * 16 * 24
    found = active_params(load_model_index(str(tmp_path)))
    # Each tensor's share is rounded down.
    assert 3 * layer - 3 * 3 * NUM_EXPERTS["olmoe"] <= found <= 3 * layer


def test_an_estimate_counts_tokens_exactly_and_bounds_the_rest(model):
    fed = corpus_ref(threes(9, 4, 7), 2)
    assert (fed.num_sequences, fed.num_tokens, fed.num_padded) == (3, 20, 5)
    single, half = (
        estimate(model, threes(9, 4, 7), make_settings(batch_size=2, dtype=dtype))
        for dtype in ("float32", "bfloat16")
    )
    sums = 3 * NUM_EXPERTS["olmoe"] * (15 + 16) * 8
    assert single.memory_bytes > model.checkpoint.nbytes + sums
    assert single.costs["read"] == cost("read", model.checkpoint.nbytes)
    assert single.costs["multiply"] == cost("multiply", (20 + 5) * active_params(model))
    # Weights take half as much in half precision.
    weights = sum(entry.numel for entry in model.checkpoint.tensors.values())
    assert single.memory_bytes - half.memory_bytes >= 2 * weights
