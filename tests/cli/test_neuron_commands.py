"""Commands on neurons: planned, exported, measured again, compared."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.model.opening import load_model_index
from analysis.stats.manifest import NEURONS
from analysis.stats.reading import load_expert_stats, read_table
from analysis.stats.store import StatsStore, stats_store
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.plan.sizes import format_bytes

PLAN = ("plan", "demo", "--granularity", "neuron", "--criterion", "neuron-norms")


@pytest.fixture
def plan(works, here):
    printed = works(*PLAN, "--sparsity", "0.25", "--multiple-of", "8", "-o", "plan.json")
    assert "padding" not in printed
    return json.loads((here / "plan.json").read_text())


def read(here, name):
    return (here / name).read_text()


def kept_ids(plan):
    """(layer, expert) -> neurons that stay, of the experts that lose some."""
    return {
        (int(layer), int(expert)): ids
        for layer, experts in plan["kept_neurons"].items()
        for expert, ids in experts.items()
    }


def test_a_plan_is_exported_and_proved(plan, works, here):
    assert plan["granularity"] == "neuron"
    # 64 neurons an expert in the demo model.
    assert {len(ids) for e in plan["kept_neurons"].values() for ids in e.values()} == {48}
    said = works("export", "demo", "out", "--plan", "plan.json", "--verify")
    assert "level logits" in said
    assert json.loads((here / "out" / "config.json").read_text())["intermediate_size"] == 48


def test_a_width_mode_whose_padding_takes_what_is_saved_is_named(works, here):
    works(*PLAN, "--sparsity", "50%", "--neuron-scope", "global", "-o", "wide.json")
    said = works("export", "demo", "out", "--plan", "wide.json", "--dry-run")
    assert "10.4 MiB -> 10.9 MiB (+4.8%) in --width-mode uniform" in said
    assert "10.4 MiB -> 6.4 MiB (-38.6%) with --width-mode ragged" in said
    said = works(
        *("export", "demo", "out", "--plan", "wide.json", "--dry-run"), "--width-mode", "ragged"
    )
    assert "padding takes" not in said


def test_padding_that_takes_all_is_named(works, moeprune, here):
    tiny_model(BY_NAME["gpt_oss"]).save_pretrained(here / "stacked")
    words = ("plan", "stacked", *PLAN[2:], "--sparsity", "30%")
    # Of 24 neurons 17 stay, a multiple of 8 is 24, and stacked experts have one width on disk.
    assert "padding takes all that is saved" in works(*words)
    assert "padding takes" not in works(*words, "--width-multiple-of", "1", "-o", "fine.json")
    # transformers' products do not take such rows.
    fine = ("--plan", "fine.json", "--width-multiple-of", "1", "--verify")
    outcome = moeprune("export", "stacked", "out", *fine)
    assert "export again with --width-multiple-of 8" in outcome.err


def test_a_dry_run_shows_every_mode_and_writes_nothing(plan, works, here):
    said = works("export", "demo", "out", "--plan", "plan.json", "--dry-run")
    for word in ("uniform", "per-layer", "ragged", "every reader"):
        assert word in said
    assert not (here / "out").exists()
    # Of the source, too, "on disk" is what its files take; the tensors alone are smaller.
    files = load_model_index("demo").checkpoint.path.glob("*.safetensors")
    whole = format_bytes(sum(file.stat().st_size for file in files))
    (row,) = [line for line in said.splitlines() if line.startswith("as it is")]
    assert [cell.strip() for cell in row.split("│")][2:4] == [whole, "10.3 MiB"]
    assert whole == "10.4 MiB"


def test_plans_are_shown_and_compared(plan, works, here):
    works(*PLAN, "--sparsity", "0.5", "--neuron-scope", "global", "-o", "other.json")
    shown = works("plans", "show", "plan.json")  # the demo model is found by its name
    assert "12,288" in shown
    assert "9,216" in shown  # 192 experts of 48 neurons
    said = works("plans", "diff", "plan.json", "other.json", "--table", "d.csv", "--experts")
    assert "experts differ; mean Jaccard of the kept neurons" in said
    table = pd.read_csv(here / "d.csv")
    assert list(table.columns) == ["layer", "expert", "both", "only_a", "only_b", "neither"]
    assert (table["only_a"] + table["only_b"] > 0).all()
    both = {key: set(ids) for key, ids in kept_ids(plan).items()}
    other = {key: set(ids) for key, ids in kept_ids(json.loads(read(here, "other.json"))).items()}
    for row in table.itertuples():
        first, second = (
            kept.get((row.layer, row.expert), set(range(64))) for kept in (both, other)
        )
        assert (row.both, row.only_a) == (len(first & second), len(first - second))
        assert row.neither == 64 - len(first | second)


def test_a_plan_of_a_model_that_is_not_here(plan, works, moeprune, here):
    away = {**plan, "model": {"name": "gone", "identity": "ab" * 32}}
    (here / "away.json").write_text(json.dumps(away))
    shown = works("plans", "show", "away.json")
    assert "gone (identity abababab) is not here" in shown
    assert "48" in shown
    refused = moeprune("plans", "show", "away.json", "--model", "demo")
    assert refused.code == 1
    # A folder of that name that is another model is not taken for it.
    (here / "gone").mkdir()
    (here / "gone" / "config.json").write_text('{"model_type": "gpt2"}')
    assert "is not here" in works("plans", "show", "away.json")


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ("--target-size 0.0065", 0.0065),
        ("--shrink 35.4%", 0.0065),
        ("--target-size 0.0075 --width-mode ragged --neuron-scope global", 0.0075),
        ("--target-size 0.009 --target-dtype bfloat16 --width-mode per-layer", 0.009),
    ],
)  # fmt: skip
def test_a_target_size_is_what_the_export_has(works, here, words, most):
    works(*PLAN, *words.split(), "-o", "p.json")
    mode = words.split()[words.split().index("--width-mode") + 1] if "mode" in words else "uniform"
    works("export", "demo", "out", "--plan", "p.json", "--width-mode", mode)
    written = load_model_index(str(here / "out")).checkpoint.nbytes
    assert 0.9 * most < written / (1 << 30) <= most


def test_an_export_says_the_flops_that_its_plan_said(works, here):
    words = ("--granularity", "neuron", "--criterion", "heapr")
    words += ("--calibrated-on=demo-code", "--calibrated-on=demo-math:3")
    planned = works("plan", "demo", *words, "--sparsity", "40%", "-o", "p.json")
    (line,) = [line for line in planned.splitlines() if "FLOPs of experts" in line]
    assert "by the routing of the runs" in planned
    export = ("export", "demo", "out", "--plan", "p.json", "--dry-run")
    assert line in works(*export)
    # What no run ranked has no routing of its own.
    works(*PLAN, "--sparsity", "40%", "-o", "p.json", "--force")
    assert "if each is chosen equally often" in works(*export)


HEAPR = ("--granularity", "neuron", "--criterion", "heapr")


def test_an_export_of_the_demo_computes_what_the_masked_model_does(works, here):
    words = ("--calibrated-on", "demo-math", "--sparsity", "40%", "--neuron-scope", "global")
    works("plan", "demo", *HEAPR, *words, "-o", "plan.json")
    plan = json.loads((here / "plan.json").read_text())
    assert (plan["criterion"], plan["corpora"]) == ("heapr", ["demo-math"])
    export = ("export", "demo", "out", "--plan", "plan.json", "--width-mode", "ragged")
    assert "level logits" in works(*export, "--verify")


def test_neurons_are_measured_cut_in_every_width_and_measured_again_where_they_stay(
    works, tiny, corpora, here
):
    options = ("--corpus", corpora[0], "--dtype", "float64", "--stats-dir", "fresh")
    works("calibrate", tiny, *options, "--group", "gradient", "--checkpoint-activations")
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
    budget = ("--sparsity", "40%", "--neuron-scope", "global", "--stats-dir", "fresh")
    works("plan", tiny, *HEAPR, *budget, "-o", "plan.json")
    for mode in ("uniform", "per-layer", "ragged"):
        words = ("--plan", "plan.json", "--width-mode", mode, "--verify")
        assert "level logits" in works("export", tiny, mode, *words)
    works("calibrate", "ragged", *options[:4], "--stats-dir", "again", "--group", "gradient")
    (run,) = StatsStore(here / "again").runs()
    left = read_table(run, NEURONS).groupby(["layer", "expert"]).size()
    stays = json.loads((here / "plan.json").read_text())["kept_neurons"]
    for (layer, expert), rows in neurons.groupby(["layer", "expert"]):
        kept = stays.get(str(layer), {}).get(str(expert))
        assert left.get((layer, expert), 0) == (len(rows) if kept is None else len(kept))
    assert len(set(left)) > 1


def test_neurons_from_a_file(works, here):
    (here / "neurons.json").write_text('{"2": {"5": [0, 7, 9], "6": []}}')
    works(*PLAN, "--kept-neurons", "neurons.json", "-o", "plan.json")
    made = json.loads((here / "plan.json").read_text())
    assert made["kept_neurons"] == {"2": {"5": [0, 7, 9], "6": []}}
    works("export", "demo", "out", "--plan", "plan.json", "--width-mode", "ragged")
    manifest = json.loads((here / "out" / "moeprune_manifest.json").read_text())
    assert manifest["widths"] == {"mode": "ragged", "multiple_of": 8}
    seen = works("inspect", "out")
    assert "0 to 64 on disk" in seen
    assert "one width" in " ".join(seen.split())


def test_constraints_hold_and_the_budget_is_spent_exactly(works, here):
    said = works(
        *(*PLAN, "--remove", "6000", "--neuron-scope", "layer", "--multiple-of", "8"),
        *("--floor", "16", "--protect", "0", "--pin", "3:2", "--drop", "1:4-5", "-o", "p.json"),
    )
    assert "keeps 6288 of 12288 neurons" in said
    made = json.loads(read(here, "p.json"))
    neurons = kept_ids(made)
    assert "0" not in made["kept_neurons"]
    assert (3, 2) not in neurons
    assert {4, 5}.isdisjoint(made["kept"]["1"])
    assert len(made["kept"]["1"]) == 30
    assert all(len(ids) % 8 == 0 and len(ids) >= 16 for ids in neurons.values())
    # Two whole experts of 64 besides what the others lose.
    assert 2 * 64 + sum(64 - len(ids) for ids in neurons.values()) == 6000
    assert made["budget"] == {"kind": "count", "asked": "6000", "removed": 6000}
    assert made["constraints"] == {
        "multiple_of": 8, "protected": [0], "pinned": {"3": [2]}, "dropped": {"1": [4, 5]},
        "floor": 16,
    }  # fmt: skip
    shown = works("plans", "show", "p.json")
    assert "protected" in shown
    # The plan is whole as a file, too.
    works(*PLAN, "--kept-neurons", "p.json", "-o", "again.json")
    again = json.loads(read(here, "again.json"))
    assert again["kept_neurons"] == made["kept_neurons"]
    assert again["kept"]["1"] == made["kept"]["1"]


def test_flops_follow_the_routing_of_a_corpus(works, here):
    works(*PLAN, "--sparsity", "50%", "--neuron-scope", "global", "-o", "p.json")
    made = json.loads(read(here, "p.json"))
    even = works("plans", "show", "p.json")
    assert "(50.00% fewer), if each is chosen equally often" in even
    measured = works("plans", "show", "p.json", "--calibrated-on", "demo-math")
    (run,) = [
        run
        for run in stats_store(None).runs()
        if run.manifest.corpus == "demo-math" and run.manifest.model.name == "demo"
    ]
    tokens = load_expert_stats(run).table.set_index(["layer", "expert"])["num_tokens"]
    neurons = kept_ids(made)
    flops = sum(
        # Four experts a token; a neuron has three rows of 128 weights, two operations each.
        4
        * count
        / tokens.loc[layer].sum()
        * len(neurons.get((layer, expert), range(64)))
        * 3
        * 128
        * 2
        for (layer, expert), count in tokens.items()
    )
    assert f"{round(flops):,} FLOPs of experts" in measured
    assert "by the routing of the runs" in measured


def test_a_second_plan_of_neurons_is_compared_with_one_of_neurons_alone(works, refused, here):
    norms = ("demo", "--granularity", "neuron", "--criterion", "neuron-norms")
    for share in ("25%", "50%"):
        works("plan", *norms, "--sparsity", share, "-o", f"{share[:-1]}.json")
    works("plan", "demo", "--criterion", "aimer", "--sparsity", "50%", "-o", "whole.json")
    a, b = (kept_ids(json.loads(read(here, f"{share}.json"))) for share in (25, 50))
    printed = works("compare", *norms, "--sparsity", "25%", "--with-plan", "50.json", "-o", "c.csv")
    table = pd.read_csv(here / "c.csv").set_index(["layer", "expert"])
    assert set(table.index) == {*a, *b}
    for place, row in table.iterrows():
        kept = set(a[place]), set(b[place])
        assert row["both"] == len(kept[0] & kept[1])
        assert (row["only_a"], row["only_b"]) == (len(kept[0] - kept[1]), len(kept[1] - kept[0]))
    # Half of what the same order keeps: all that B keeps A keeps too.
    assert "equal decisions        0.75" in printed
    words = (*norms, "--sparsity", "25%", "--with-plan", "50.json")
    works("plot", "kept-by", *words, "-o", "map.csv")
    assert read(here, "map.csv") == read(here, "c.csv")
    works("plot", "agreement", *words, "-o", "layers.csv")
    assert pd.read_csv(here / "layers.csv")["agreement"].tolist() == [0.75] * 6
    works("report", *words, "--view", "kept-by", "--view", "agreement", "-o", "report.html")
    assert "50.json" in read(here, "report.html")
    mixed = "two plans of one granularity are compared"
    assert mixed in refused("compare", *norms, "--sparsity", "25%", "--with-plan", "whole.json")
    whole = ("--criterion", "aimer", "--with-plan", "50.json", "--sparsity", "50%")
    for command in ("compare demo -o no.csv", "plot kept-by demo", "report demo -o n.html"):
        assert mixed in refused(*command.split(), *whole)
    assert "with the file of another" in refused(
        "compare", *norms, "--sparsity", "25%", "--with-criterion", "heapr"
    )
