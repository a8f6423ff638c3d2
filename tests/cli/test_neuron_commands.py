"""HEAPr on the command line: neurons measured, scored, planned, exported in three widths."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.stats.store import NEURONS, StatsStore, read_table

HEAPR = ("--granularity", "atomic", "--criterion", "heapr")


def test_an_export_of_the_demo_computes_what_the_masked_model_does(works, here):
    words = ("--corpus", "demo-math", "--sparsity", "40%", "--atom-scope", "global")
    works("plan", "demo", *HEAPR, *words, "-o", "plan.json")
    plan = json.loads((here / "plan.json").read_text())
    assert (plan["criterion"], plan["corpora"]) == ("heapr", ["demo-math"])
    export = ("export", "demo", "out", "--plan", "plan.json", "--width-mode", "ragged")
    assert "level logits" in works(*export, "--verify")


def test_neurons_are_measured_cut_in_every_width_and_measured_again_where_they_stay(
    works, tiny, corpora, here
):
    options = ("--corpus", corpora[0], "--dtype", "float64", "--stats-dir", "fresh")
    works("calibrate", tiny, *options, "--groups", "routed,gradient", "--checkpoint-activations")
    works("score", tiny, *HEAPR, "--stats-dir", "fresh", "-o", "neurons.csv")
    neurons = pd.read_csv(here / "neurons.csv")
    columns = ["layer", "expert", "neuron", "score", "saliency", "rank", "num_tokens"]
    assert list(neurons) == columns
    assert (neurons["score"] >= 0).all()
    order = neurons.sort_values("rank")
    assert order["rank"].tolist() == list(range(len(neurons)))
    assert (np.diff(order["saliency"]) <= 0).all()
    # A whole expert's score is the sum over its neurons.
    works("score", tiny, "--criterion", "heapr", "--stats-dir", "fresh", "-o", "experts.csv")
    experts = pd.read_csv(here / "experts.csv")["score"]
    sums = neurons.groupby(["layer", "expert"])["score"].sum()
    np.testing.assert_allclose(experts, sums, rtol=1e-12)

    # Of experts that lost different numbers only the neurons that are there are measured.
    budget = ("--sparsity", "40%", "--atom-scope", "global", "--stats-dir", "fresh")
    works("plan", tiny, *HEAPR, *budget, "-o", "plan.json")
    for mode in ("uniform", "per-layer", "ragged"):
        words = ("--plan", "plan.json", "--width-mode", mode, "--verify")
        assert "level logits" in works("export", tiny, mode, *words)
    works("calibrate", "ragged", *options[:4], "--stats-dir", "again", "--groups", "gradient")
    (run,) = StatsStore(here / "again").runs()
    left = read_table(run, NEURONS).groupby(["layer", "expert"]).size()
    atoms = json.loads((here / "plan.json").read_text())["kept_atoms"]
    for (layer, expert), rows in neurons.groupby(["layer", "expert"]):
        kept = atoms.get(str(layer), {}).get(str(expert))
        assert left.get((layer, expert), 0) == (len(rows) if kept is None else len(kept))
    assert len(set(left)) > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--criterion reap", "REAP scores no neurons; those that do: heapr, camera-p"),
        ("--criterion camera-p --corpus demo-math --corpus demo-code", "maxima, which a blend"),
        ("--criterion heapr", "choose with --corpus"),
    ],
)
def test_scores_that_cannot_be_given_say_why(moeprune, words, message):
    assert message in moeprune("score", "demo", "--granularity", "atomic", *words.split()).err


def test_an_unknown_granularity_names_the_known(moeprune):
    said = moeprune("score", "demo", "--criterion", "heapr", "--granularity", "atom").err
    assert "--granularity: Input should be 'expert' or 'atomic'" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--groups routed,gradient --stream-layers", "leave --stream-layers out"),
        ("--checkpoint-activations", "--groups routed,gradient"),
    ],
)
def test_ways_that_do_not_fit_the_group_are_refused(moeprune, words, message):
    assert message in moeprune("calibrate", "demo", "--corpus", "demo-math", *words.split()).err
