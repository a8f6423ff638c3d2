"""Does the plan still fit: shares and overlaps of traffic, against loops over the answers."""

import base64
import io
import json

import numpy as np
import pytest

from analysis.model.opening import load_model_index
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore
from builders.traffic import npy, random_rows, write_traces
from pruning.plan.plan_file import load_plan


@pytest.fixture
def layers(tiny):
    return load_model_index(str(tiny)).layers


@pytest.fixture
def traces(layers, here):
    return write_traces(here / "monday.jsonl", layers)


@pytest.fixture
def plan(works, tiny, corpora, stats, here):
    """Of two, three and four of six experts."""
    counts = here / "counts.json"
    counts.write_text(json.dumps({"kept": {"0": 2, "2": 3, "3": 4}}))
    ranked = ("--criterion", "ean", "--calibrated-on", corpora[0], "--stats-dir", stats)
    works("plan", tiny, *ranked, "--schedule-file", counts)
    return here / "plan.json"


def chosen(traces, layer):
    """Expert ids of a layer, of all answers, one after the other."""
    ids = []
    for line in traces.read_text().splitlines():
        rows = json.loads(line)["choices"][0]["routed_experts"]
        ids += np.load(io.BytesIO(base64.b64decode(rows)))[:, layer].reshape(-1).tolist()
    return ids


def most_chosen(counts, number):
    return set(sorted(range(len(counts)), key=lambda expert: (-counts[expert], expert))[:number])


def test_shares_and_overlaps_are_those_of_the_answers(
    moeprune, traces, plan, layers, stats, run_ids
):
    outcome = moeprune("traffic", plan, traces, "--stats-dir", stats, "--json")
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)["result"]
    kept = load_plan(plan).kept
    assert [len(kept[layer.index]) for layer in layers] == [2, 3, 4]
    assert (result["requests"], result["tokens"]) == (3, 69)
    held, best, overlaps = [], [], {"red": [], "blue": []}
    for layer, row in zip(layers, result["layers"], strict=True):
        ids, stay = chosen(traces, layer.index), kept[layer.index]
        counts = [ids.count(expert) for expert in range(6)]
        held.append(sum(expert in stay for expert in ids) / len(ids))
        would = most_chosen(counts, len(stay))
        best.append(sum(expert in would for expert in ids) / len(ids))
        assert (row["layer"], row["held"]) == (layer.index, pytest.approx(held[-1]))
        assert row["best"] == pytest.approx(best[-1])
        for name, of_corpus in overlaps.items():
            run = StatsStore(stats).get(run_ids["tiny", name])
            table = load_expert_stats(run).table
            tokens = table[table["layer"] == layer.index]["num_tokens"].tolist()
            assert row[run.manifest.corpus] == pytest.approx(
                sum(tokens[expert] for expert in stay) / sum(tokens)
            )
            others = most_chosen(tokens, len(stay))
            gone = set(range(6)) - would
            of_corpus.append(len(gone - others) / len(gone))
    assert result["held"] == pytest.approx(np.mean(held))
    assert result["best"] == pytest.approx(np.mean(best)) and result["best"] >= result["held"]
    assert result["chance"] == pytest.approx(np.mean([4, 3, 2]) / 6)
    told = {row["corpus"].partition(".")[0]: row for row in result["corpora"]}
    for name, of_corpus in overlaps.items():
        assert told[name]["overlap"] == pytest.approx(np.mean(of_corpus))
    assert [told[name]["ranked"] for name in ("red", "blue")] == [True, False]
    shares = [row["overlap"] for row in result["corpora"]]
    assert shares == sorted(shares, reverse=True)


def test_a_plan_by_this_traffic_holds_as_much_as_any(works, moeprune, traces, tiny, stats, here):
    folder = here / "own"
    works("runs", "import", traces, "--model", tiny, "--stats-dir", folder)
    ranked = ("--criterion", "frequency", "--calibrated-on", "monday", "--stats-dir", folder)
    works("plan", tiny, *ranked, "--sparsity", "50%")
    words = ("traffic", "plan.json", traces, "--stats-dir", folder)
    result = json.loads(moeprune(*words, "--json").out)["result"]
    assert result["held"] == result["best"]
    (corpus,) = result["corpora"]
    assert (corpus["corpus"], corpus["overlap"], corpus["ranked"]) == ("monday", 1.0, True)
    said = works(*words)
    assert f"hold {result['held']:.1%} of today's routed choices, {result['held']:.1%} of" in said


def test_traffic_of_another_model_and_plans_of_neurons_are_refused(
    refused, works, traces, plan, layers, tiny, other, stats, here
):
    place = ("--stats-dir", stats)
    assert "The plan is for tiny" in refused("traffic", plan, traces, "--model", other, *place)
    bare = refused("traffic", plan, traces, "--stats-dir", here / "empty")
    assert "name the checkpoint with --model" in bare
    wide = here / "wide.jsonl"
    rows = random_rows(3, load_model_index(str(other)).layers)
    wide.write_text(json.dumps({"choices": [{"routed_experts": rows.tolist()}]}) + "\n")
    # `other` has three layers, as many as `tiny` has with experts, and one expert more in each.
    assert "which has 6 in tiny: answers of another model" in refused("traffic", plan, wide, *place)
    neurons = ("--granularity", "neuron", "--criterion", "random", "--shrink", "20%")
    works("plan", tiny, *neurons, "--neuron-scope", "layer", "-o", "neurons.json", *place)
    assert "removes neurons" in refused("traffic", "neurons.json", traces, *place)


@pytest.fixture
def own(works, traces, tiny, corpora, here):
    """A folder with traffic `monday` and a calibration."""
    folder = here / "own"
    works("runs", "import", traces, "--model", tiny, "--stats-dir", folder)
    sizes = ("--tokens", "64", "--seq-len", "16", "--stats-dir", folder)
    works("calibrate", tiny, "--corpus", corpora[0], *sizes)
    return folder


def test_traffic_has_no_parts_by_tokens(refused, works, tiny, corpora, own, here):
    by = ("--criterion", "frequency", "--calibrated-on", "monday", "--stats-dir", own)
    parts = ("overlap", tiny, "--sparsity", "50%", "--parts")
    subsets = ("subsets", tiny, "--sparsity", "50%", "--corpus", corpora[1], "--samples", "3")
    for words in (parts, subsets):
        said = refused(*words, *by)
        assert "monday is traffic, which has no parts by tokens" in said
        assert "remove" not in said
    # Traffic that nobody named is not asked for parts.
    assert "monday" not in works(*parts, "--criterion", "frequency", "--stats-dir", own)


def test_a_plan_that_removes_nothing_has_no_nearest_corpus(moeprune, works, traces, tiny, own):
    ranked = ("--criterion", "frequency", "--calibrated-on", "monday", "--stats-dir", own)
    works("plan", tiny, *ranked, "--sparsity", "0%")
    words = ("traffic", "plan.json", traces, "--stats-dir", own)
    printed = moeprune(*words, "--json").out
    result = json.loads(printed)["result"]
    assert "NaN" not in printed
    assert (result["held"], result["best"], result["chance"]) == (1, 1, None)
    names = [row["corpus"] for row in result["corpora"]]
    assert names == sorted(names) and len(names) == 2
    assert {row["overlap"] for row in result["corpora"]} == {None}
    said = works(*words)
    assert "nan" not in said.lower()
    assert "nearest" not in said


def test_answers_of_a_pruned_model_are_refused_with_what_to_do(
    refused, works, tiny, plan, layers, stats, here
):
    """A thousand and more tokens of experts 0 to 3 of 6 alone."""
    rows = np.zeros((1100, 4, 2), dtype=np.int64)
    for layer in layers:
        rows[:, layer.index] = np.column_stack([np.arange(1100) % 4, np.arange(1, 1101) % 4])
    small = here / "small.jsonl"
    small.write_text(json.dumps({"choices": [{"routed_experts": npy(rows)}]}) + "\n")
    said = refused("traffic", plan, small, "--stats-dir", stats)
    assert "no layer chose the last 2 experts" in said
    assert "Serve tiny itself, and give its answers." in said
    assert "add --allow-small-ids" in said
    # A model whose routers never choose them is taken by its owner's word, and that is recorded.
    allowed = works("traffic", plan, small, "--stats-dir", stats, "--allow-small-ids")
    assert "allowed though no layer chose the last 2 experts" in " ".join(allowed.split())
    assert "--allow-small-ids" in allowed.splitlines()[-1]
    words = ("runs", "import", small, "--model", tiny, "--stats-dir", here / "own")
    run = json.loads(works(*words, "--allow-small-ids", "--json"))["result"]["run"]
    manifest = json.loads(works("runs", "show", run, "--stats-dir", here / "own"))
    assert manifest["corpora"][0]["prepared"]["traffic"]["unseen"] == 2
    assert "add --allow-small-ids" in refused(*words)  # though the run is there
    assert json.loads(works(*words, "--allow-small-ids", "--json"))["result"]["run"] == run


@pytest.mark.parametrize("name", ["-x.jsonl", "\u00e9.jsonl"])
def test_a_file_whose_name_is_no_name_of_traffic_needs_one(name, refused, traces, tiny, here):
    file = traces.rename(here / name)
    said = refused("runs", "import", file, "--model", tiny, "--stats-dir", here / "own")
    assert "such as monday-chats: --name" in said
