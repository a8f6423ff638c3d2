"""`moeprune compare`: its file equals two scores, its second recipe takes over what it may."""

import numpy as np
import pandas as pd


def test_ranks_are_those_of_the_two_scores(works, here):
    words = ("demo", "--corpus", "demo-code")
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


def test_a_second_criterion_of_weights_takes_no_text(works, here):
    output = works(
        *("compare", "demo", "--criterion", "man", "--corpus", "demo-math", "--sparsity", "50%"),
        *("--with-criterion", "aimer"),
    )
    assert "demo-weights" in output
    assert len(pd.read_csv(here / "comparison.csv")) == 192


def test_texts_beside_each_other(works, here):
    works(
        *("compare", "demo", "--criterion", "man", "--corpus", "demo-math", "--sparsity", "50%"),
        *("--with-criterion", "man", "--with-corpus", "demo-code"),
    )
    made = pd.read_csv(here / "comparison.csv")
    works("overlap", "demo", "--sparsity", "50%", "--criterion", "man", "-o", "o.csv")
    pairs = pd.read_csv(here / "o.csv").set_index(["corpus_a", "corpus_b"])["overlap"]
    # At one sparsity, the overlap is the share of A's pruned that B prunes too.
    gone = made["kept_by"].isin(("only B", "neither"))
    share = (made["kept_by"] == "neither").sum() / gone.sum()
    assert np.isclose(share, pairs["demo-code", "demo-math"])


def test_an_unknown_second_criterion_is_one_line(moeprune):
    outcome = moeprune(
        *("compare", "demo", "--criterion", "man", "--corpus", "demo-math", "--sparsity", "50%"),
        *("--with-criterion", "mann"),
    )
    assert outcome.code == 1
    assert "Did you mean 'man'" in outcome.err
