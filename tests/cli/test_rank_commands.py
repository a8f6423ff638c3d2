"""score, overlap, plan: the files that they write."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from analysis.corpora.spec import corpus_name


@pytest.fixture
def command(works, tiny, stats, corpora, here):
    """Run one of the three on `tiny` with both corpora at hand; the file that it wrote."""

    def run(name, out, *options, corpus=None):
        wanted = ("--calibrated-on", corpora[corpus]) if corpus is not None else ()
        again = ("--force",) if name in ("plan", "score") else ()
        works(name, tiny, *options, *wanted, *again, "--stats-dir", stats, "-o", out)
        return here / out

    return run


@pytest.fixture
def moments(stats, run_ids):
    return pd.read_parquet(stats / run_ids["tiny", "red"] / "experts.parquet")


def test_score_columns_and_order(command):
    table = pd.read_csv(command("score", "s.csv", "--criterion", "reap", corpus=0))
    assert list(table) == ["layer", "expert", "score", "saliency", "rank", "num_tokens"]
    assert list(zip(table["layer"], table["expert"], strict=True)) == [
        (layer, expert) for layer in (0, 2, 3) for expert in range(6)
    ]
    for _, layer in table.groupby("layer"):
        by_rank = layer.sort_values("rank")
        assert list(by_rank["rank"]) == list(range(6))
        assert by_rank["saliency"].is_monotonic_decreasing


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        ("frequency", lambda m: m["num_tokens"]),
        ("0,0,0", lambda m: m["num_tokens"]),
        ("ean", lambda m: m["g0_f1"]),
        ("man", lambda m: m["g0_f1"] / m["num_tokens"]),
        ("reap", lambda m: m["applied_g1_f1"] / m["num_tokens"]),
        ("1,2,2", lambda m: m["applied_g2_f2"] / m["num_tokens"]),
    ],
)
def test_score_is_the_moment_that_the_exponents_name(command, moments, criterion, expected):
    table = pd.read_csv(command("score", "s.csv", "--criterion", criterion, corpus=0))
    # All 48 tokens, 2 experts each, 3 layers; an expert without tokens scores 0.
    np.testing.assert_allclose(table["score"], expected(moments).fillna(0), rtol=1e-12)
    assert table["num_tokens"].sum() == 48 * 2 * 3


def test_score_of_weights_has_no_token_counts_and_prunes_large_aimer_first(command):
    table = pd.read_csv(command("score", "s.csv", "--criterion", "aimer"))
    assert table["num_tokens"].isna().all()
    np.testing.assert_array_equal(table["saliency"], -table["score"])
    assert (table.sort_values("score").groupby("layer")["rank"].first() == 0).all()


def test_score_measures_weights_by_itself(works, tiny, here):
    works("score", tiny, "--criterion", "magnitude", "--stats-dir", "fresh")
    assert len(pd.read_csv(here / "scores.csv")) == 18
    assert len(list((here / "fresh").glob("tiny-weights-*/manifest.json"))) == 1


def test_overlap_columns_and_rows(command, corpora):
    table = pd.read_csv(command("overlap", "o.csv", "--sparsity", "50%"))
    assert list(table) == [
        *("criterion", "b", "alpha", "beta", "sparsity"),
        *("corpus_a", "corpus_b", "overlap", "chance"),
    ]
    rankable = {(b, a, c) for b in (0, 1) for a in (0, 1, 2) for c in (0, 1, 2)} - {(1, 0, 0)}
    assert set(table[["b", "alpha", "beta"]].itertuples(index=False, name=None)) == rankable
    assert len(table) == 17
    assert set(table["sparsity"]) == {0.5}
    assert set(table["chance"]) == {0.5}
    assert set(table["corpus_a"]) | set(table["corpus_b"]) == {
        corpus_name(str(corpus)) for corpus in corpora
    }


def test_overlap_equals_that_of_the_two_scores(command):
    last_two = {}
    for corpus in (0, 1):
        table = pd.read_csv(command("score", "s.csv", "--criterion", "msan", corpus=corpus))
        # A third of 6 experts goes: ranks 4 and 5.
        gone = table[table["rank"] >= 4]
        last_two[corpus] = gone.groupby("layer")["expert"].apply(set)
    shared = [len(a & b) / 2 for a, b in zip(last_two[0], last_two[1], strict=True)]
    written = command("overlap", "o.csv", "--sparsity", "0.34", "--criterion", "msan")
    (row,) = pd.read_csv(written).itertuples()
    assert row.overlap == pytest.approx(np.mean(shared), abs=1e-12)
    # Rounded down: 2 of 6, not 34%.
    assert row.chance == pytest.approx(1 / 3)


def test_a_smaller_run_of_a_corpus_takes_over_only_if_it_is_named(
    works, tiny, stats, run_ids, corpora, here
):
    kept = shutil.copytree(stats, here / "kept")
    large, blue = run_ids["tiny", "red"], run_ids["tiny", "blue"]
    words = ("--sparsity", "50%", "--stats-dir", kept, "-o", "o.csv")
    said = works("overlap", tiny, *words, "--force")
    before = (here / "o.csv").read_text()
    assert f"from {large}, 48 tokens" in said
    assert "2 runs" not in said
    settings = ("--tokens", 24, "--seq-len", 16, "--stats-dir", kept)
    works("calibrate", tiny, "--corpus", corpora[0], *settings)
    (small,) = {path.name for path in kept.iterdir()} - {path.name for path in stats.iterdir()}
    note = f"{corpus_name(str(corpora[0]))} has 2 runs; using {large}, the largest"
    assert note in works("overlap", tiny, *words, "--force")
    assert (here / "o.csv").read_text() == before
    ranked = ("--criterion", "reap", "--calibrated-on", "red.jsonl", "--stats-dir", kept)
    assert note in works("score", tiny, *ranked)
    assert note in works("plan", tiny, *ranked, "--sparsity", "50%")
    said = works("overlap", tiny, *words, "--force", "--run", small, "--run", blue)
    assert f"from {small}, 23 tokens" in said
    assert "2 runs" not in said
    assert (here / "o.csv").read_text() != before
    # Two runs of one corpus have the names of the runs.
    works("overlap", tiny, *words, "--force", "--run", small, "--run", large)
    pairs = pd.read_csv(here / "o.csv")
    assert set(pairs["corpus_a"]) | set(pairs["corpus_b"]) == {small, large}


@pytest.mark.parametrize(("sparsity", "kept"), [("0", 6), ("50%", 3), ("0.34", 4), ("66%", 3)])
def test_plan_keeps_the_first_ranks_of_each_layer(command, tiny, sparsity, kept):
    table = pd.read_csv(command("score", "s.csv", "--criterion", "reap", corpus=1))
    made = command("plan", "p.json", "--criterion", "reap", "--sparsity", sparsity, corpus=1)
    plan = json.loads(made.read_text())
    expected = {
        str(layer): sorted(rows.loc[rows["rank"] < kept, "expert"])
        for layer, rows in table.groupby("layer")
    }
    assert plan["kept"] == expected
    assert plan["schema_version"] == 1
    assert plan["granularity"] == "expert"
    assert plan["model"]["name"] == "tiny"
    assert (plan["criterion"], plan["sparsity"], plan["schedule"]) == ("reap", sparsity, "uniform")


def test_blend_shows_what_each_corpus_keeps_and_a_fair_one_is_no_worse(works, tiny, stats, corpora):
    words = ("blend", tiny, "--criterion", "ean", "--sparsity", "34%", "--stats-dir", stats)
    both = [f"--calibrated-on={path}" for path in corpora]
    worst = []
    for extra in ((), ("--fair",)):
        output = works(*words, *both, *extra)
        assert all(path.name in output for path in corpora)
        worst.append(float(output.rpartition("holds ")[2].partition(" of")[0]))
    assert 0 < worst[0] <= worst[1] <= 1


def test_blend_says_its_runs_and_takes_them_by_id(works, tiny, stats, corpora, run_ids):
    words = ("blend", tiny, "--criterion", "ean", "--sparsity", "34%", "--stats-dir", stats)
    by_name = works(*words, *(f"--calibrated-on={path}" for path in corpora))
    used = [
        line.split()[1].rstrip(",") for line in by_name.splitlines() if line.startswith("from ")
    ]
    assert sorted(used) == sorted(run_ids["tiny", word] for word in ("red", "blue"))
    assert works(*words, *(f"--run={run_id}" for run_id in used)) == by_name


def test_a_file_is_known_by_its_content(works, refused, tiny, stats, corpora, run_ids, here):
    run_id, name = run_ids["tiny", "red"], corpus_name(str(corpora[0]))
    score = ("score", tiny, "--criterion", "ean", "--stats-dir", stats, "--force")
    (here / "copy.jsonl").write_bytes(corpora[0].read_bytes())
    for known in (corpora[0], "copy.jsonl", name, "red.jsonl"):
        assert run_id in works(*score, "--calibrated-on", known)
    # The same tokens in other bytes: the run is kept under the first name.
    (here / "lines.jsonl").write_bytes(corpora[0].read_bytes() + b"\n")
    words = ("calibrate", tiny, "--tokens", 64, "--seq-len", 16, "--stats-dir", stats)
    kept = f"choose it with --calibrated-on {name} or --run {run_id}"
    assert kept in works(*words, "--corpus", "lines.jsonl")
    assert "choose it with" not in works(*words, "--corpus", "copy.jsonl")


def test_two_files_of_one_name_are_two_corpora(works, refused, tiny, corpora, here):
    for folder, source in zip("ab", corpora, strict=True):
        (here / folder).mkdir()
        (here / folder / "x.jsonl").write_bytes(source.read_bytes())
    words = ("--tokens", 48, "--seq-len", 16, "--stats-dir", "kept")
    score = ("score", tiny, "--criterion", "ean", "--stats-dir", "kept", "-o", "s.csv")
    first, second = (corpus_name(f"{folder}/x.jsonl") for folder in "ab")
    works("calibrate", tiny, "--corpus", "a/x.jsonl", *words)
    only = refused(*score, "--calibrated-on", "b/x.jsonl")
    assert f"The content of b/x.jsonl is {second}" in only
    assert f"{first} (read from a/x.jsonl)" in only
    assert "The file of c/x.jsonl does not exist." in refused(
        *score, "--calibrated-on", "c/x.jsonl"
    )
    works("calibrate", tiny, "--corpus", "a/x.jsonl", "--corpus", "b/x.jsonl", *words)
    scores = {}
    for number, corpus in enumerate(("a/x.jsonl", "b/x.jsonl", first, second)):
        works(*score[:-1], f"{number}.csv", "--calibrated-on", corpus)
        scores[corpus] = (here / f"{number}.csv").read_text()
    assert scores["a/x.jsonl"] == scores[first] != scores[second] == scores["b/x.jsonl"]
    both = refused(*score, "--calibrated-on", "x.jsonl")
    assert "is the name of 2 corpora" in both
    assert first in both
    assert second in both
    works("overlap", tiny, "--sparsity", "50%", "--stats-dir", "kept", "-o", "o.csv")
    table = pd.read_csv(here / "o.csv")
    assert set(table["corpus_a"]) | set(table["corpus_b"]) == {first, second}
    # A file that changed is another corpus, for all that reads it.
    (here / "a" / "x.jsonl").write_bytes(corpora[0].read_bytes() * 2)
    changed = refused(*score, "--calibrated-on", "a/x.jsonl")
    assert f"The content of a/x.jsonl is {corpus_name('a/x.jsonl')}" in changed
    assert "has changed" in changed
    again = ("--tokens", 48, "--seq-len", 16, "--stats-dir", "kept")
    assert "holds another text" in refused("calibrate", tiny, "--corpus", f"a/{first}", *again)


def test_ranks_are_those_of_the_two_scores(works, here):
    words = ("demo", "--calibrated-on", "demo-code")
    works("score", *words, "--criterion", "reap", "-o", "a.csv")
    works("score", *words, "--criterion", "1,0,2", "-o", "b.csv")
    output = works(
        *("compare", *words, "--criterion", "reap", "--sparsity", "25%"),
        *("--with-criterion", "msan", "--with-sparsity", "75%", "-o", "c.csv"),
    )
    made, a, b = (pd.read_csv(here / name) for name in ("c.csv", "a.csv", "b.csv"))
    for side, score in (("a", a), ("b", b)):
        assert made[f"rank_{side}"].tolist() == score["rank"].tolist()
        np.testing.assert_allclose(made[f"saliency_{side}"], score["saliency"])
    # Of 32 experts A keeps 24 and B 8.
    kept = pd.Series("neither", index=made.index)
    kept[a["rank"] < 24] = "only A"
    kept[b["rank"] < 8] = "only B"
    kept[(a["rank"] < 24) & (b["rank"] < 8)] = "both"
    assert made["kept_by"].tolist() == kept.tolist()
    alike = kept.isin(("both", "neither")).mean()
    assert f"equal decisions              {alike:.4g}" in output


COMPARE = (
    *("compare", "demo", "--criterion", "man", "--calibrated-on", "demo-math"),
    *("--sparsity", "50%"),
)


def test_a_second_criterion_of_weights_takes_no_text(works, here):
    output = works(
        *COMPARE,
        *("--with-criterion", "aimer"),
    )
    assert "demo-weights" in output
    assert len(pd.read_csv(here / "comparison.csv")) == 192


def test_texts_beside_each_other(works, here):
    works(
        *COMPARE,
        *("--with-criterion", "man", "--with-calibrated-on", "demo-code"),
    )
    made = pd.read_csv(here / "comparison.csv")
    works("overlap", "demo", "--sparsity", "50%", "--criterion", "man", "-o", "o.csv")
    pairs = pd.read_csv(here / "o.csv").set_index(["corpus_a", "corpus_b"])["overlap"]
    # At one sparsity, the overlap is the share of A's pruned that B prunes too.
    gone = made["kept_by"].isin(("only B", "neither"))
    share = (made["kept_by"] == "neither").sum() / gone.sum()
    assert np.isclose(share, pairs["demo-code", "demo-math"])


def test_plan_by_run_id_equals_plan_by_corpus(works, command, tiny, stats, run_ids, here):
    by_corpus = command("plan", "a.json", "--criterion", "man", "--sparsity", "0.5", corpus=0)
    run = ("--run", run_ids["tiny", "red"])
    works(
        *("plan", tiny, "--criterion", "man", "--sparsity", "0.5"),
        *(*run, "--stats-dir", stats, "-o", "b.json"),
    )
    assert (
        json.loads((here / "b.json").read_text())["kept"]
        == json.loads(by_corpus.read_text())["kept"]
    )


def test_overlap_of_parts_of_the_tokens_by_the_first_half_of_the_shards(
    command, stats, run_ids, corpora
):
    table = pd.read_csv(command("overlap", "p.csv", "--sparsity", "34%", "--parts"))
    assert list(table) == ["corpus", "tokens", "overlap", "chance"]
    red = table[table["corpus"] == corpus_name(str(corpora[0]))].set_index("tokens")
    assert list(red.index) == [6, 12, 24, 48]
    # REAP by hand of the shards 0 to 3, and of all: two of six experts go.
    shards = pd.read_parquet(stats / run_ids["tiny", "red"] / "shards.parquet")
    pruned = []
    for last in (3, 7):
        sums = shards[shards["shard"] <= last].groupby(["layer", "expert"]).sum()
        reap = (sums["applied_g1_f1"] / sums["num_tokens"]).fillna(0.0)
        pruned.append(
            {
                layer: set(sorted(range(6), key=lambda e: (-saliency[layer, e], e))[4:])
                for layer in (0, 2, 3)
                for saliency in (reap,)
            }
        )
    shared = [len(pruned[0][layer] & pruned[1][layer]) / 2 for layer in (0, 2, 3)]
    assert red.loc[24, "overlap"] == pytest.approx(np.mean(shared), abs=1e-12)
    assert red.loc[48, "overlap"] == 1
    assert red["chance"].tolist() == pytest.approx([1 / 3] * 4)


def test_overlap_of_damage_and_its_proxy(works, moeprune, tiny, stats, here):
    works("overlap", "demo", "--sparsity", "50%", "--proxy", "-o", "p.csv")
    table = pd.read_csv(here / "p.csv")
    assert table.groupby("corpus")["sparsity"].apply(list).tolist() == [[0.25, 0.5]] * 3
    # What the criteria themselves prune, pair by pair.
    scores = []
    for criterion in ("damage", "0,1,1"):
        ranked = ("score", "demo", "--criterion", criterion, "--calibrated-on", "demo-math")
        works(*ranked, "-o", "s.csv", "--force")
        scores.append(pd.read_csv(here / "s.csv"))
    half = scores[0].groupby("layer")["rank"].transform("size") / 2
    gone = [scored["rank"] >= half for scored in scores]
    shared = (gone[0] & gone[1]).groupby(scores[0]["layer"]).sum()
    sizes = gone[0].groupby(scores[0]["layer"]).sum()
    row = table[(table["corpus"] == "demo-math") & (table["sparsity"] == 0.5)].iloc[0]
    assert row["overlap"] == pytest.approx((shared / sizes).mean(), abs=1e-12)
    refused = moeprune("overlap", tiny, "--sparsity", "50%", "--proxy", "--stats-dir", stats)
    assert "calibrate with --group damage" in refused.err
