"""Which experts stay on a device: bytes and shares against loops over headers and counts."""

import json
from itertools import combinations

import numpy as np
import pytest
from safetensors import safe_open

from analysis.model.opening import load_model_index
from analysis.stats.reading import load_expert_stats
from analysis.stats.store import StatsStore
from builders.traffic import write_traces
from pruning.planning.placement import place_layers

LAYERS = (0, 2, 3)
EXPERT = 4 * 3 * 16 * 24  # bytes: three matrices of 16 by 24 in float32


@pytest.fixture
def others(tiny):
    """Bytes of all tensors but those of routed experts."""
    total = 0
    for shard in tiny.glob("*.safetensors"):
        with safe_open(shard, "np") as file:
            names = list(file.keys())
            total += sum(file.get_tensor(name).nbytes for name in names if ".experts." not in name)
    return total


@pytest.fixture
def counts(stats, run_ids):
    """Layer -> routed tokens of each expert, on the corpus red."""
    table = load_expert_stats(StatsStore(stats).get(run_ids["tiny", "red"])).table
    return {layer: table[table["layer"] == layer]["num_tokens"].tolist() for layer in LAYERS}


@pytest.fixture
def placed(works, tiny, stats, here, others):
    """Place so many bytes of experts; the file."""

    def place(room, *words, folder=stats):
        asked = ("--budget", f"{(others + room) / 1024}KiB", "--stats-dir", folder, "--force")
        works("placement", tiny, *asked, *words)
        return json.loads((here / "placement.json").read_text())

    return place


def total(counts):
    return sum(map(sum, counts.values()))


def test_no_seven_experts_serve_more(placed, counts, corpora, others):
    found = placed(8 * EXPERT - 1, "--calibrated-on", corpora[0])
    assert found["other_bytes"] == others
    assert found["device_bytes"] == others + 7 * EXPERT
    assert found["host_bytes"] == 11 * EXPERT
    every = [number for of_layer in counts.values() for number in of_layer]
    best = max(sum(chosen) for chosen in combinations(every, 7))
    held = {row["layer"]: row["device"] for row in found["layers"]}
    assert sum(map(len, held.values())) == 7
    assert found["served"] == pytest.approx(best / total(counts))
    for row in found["layers"]:
        of_layer = counts[row["layer"]]
        assert sorted(row["device"] + row["host"]) == list(range(6))
        assert row["served"] == pytest.approx(
            sum(of_layer[expert] for expert in row["device"]) / sum(of_layer)
        )
        assert row["device_bytes"] == len(row["device"]) * EXPERT


def test_other_corpora_tell_what_the_same_experts_serve_there(placed, stats, run_ids, corpora):
    found = placed(7 * EXPERT, "--calibrated-on", corpora[0])
    table = load_expert_stats(StatsStore(stats).get(run_ids["tiny", "blue"])).table
    device = {(row["layer"], expert) for row in found["layers"] for expert in row["device"]}
    rows = table[["layer", "expert", "num_tokens"]].itertuples(index=False)
    served = sum(tokens for layer, expert, tokens in rows if (layer, expert) in device)
    (share,) = found["served_elsewhere"].values()
    assert share == pytest.approx(served / table["num_tokens"].sum())


def test_uniform_gives_layers_equal_numbers_of_their_most_chosen(placed, counts, corpora):
    found = placed(6 * EXPERT, "--calibrated-on", corpora[0], "--schedule", "uniform")
    for row in found["layers"]:
        of_layer = counts[row["layer"]]
        most = sorted(range(6), key=lambda expert: (-of_layer[expert], expert))[:2]
        assert row["device"] == sorted(most)


def test_llama_cpp_takes_the_last_whole_layers(placed, counts, corpora, others):
    # Room for two layers of six experts, and not for three.
    found = placed(17 * EXPERT, "--calibrated-on", corpora[0])["llama_cpp"]
    assert (found["host_layers"], found["device_layers"]) == ([0], [2, 3])
    assert found["device_bytes"] == others + 12 * EXPERT
    assert found["served"] == pytest.approx(2 / 3)  # every layer serves two experts per token
    pattern = r"blk\.(0)\.ffn_(up|down|gate|gate_up)_exps=CPU"
    assert (found["override_tensor"], found["n_cpu_moe"]) == (pattern, 1)
    assert found["command"].endswith(f"--n-gpu-layers 999 --override-tensor '{pattern}'")
    # Layer 1 is dense: the first three layers have experts in two.
    assert placed(6 * EXPERT, "--calibrated-on", corpora[0])["llama_cpp"]["n_cpu_moe"] == 3


def test_all_or_nothing(placed, corpora):
    full = placed(18 * EXPERT, "--calibrated-on", corpora[0])
    assert (full["served"], full["host_bytes"]) == (1, 0)
    llama_cpp = full["llama_cpp"]
    assert (llama_cpp["override_tensor"], llama_cpp["n_cpu_moe"]) == ("", 0)
    assert "override" not in llama_cpp["command"]
    none = placed(0, "--calibrated-on", corpora[0])
    assert (none["served"], none["device_bytes"]) == (0, none["other_bytes"])
    assert none["llama_cpp"]["n_cpu_moe"] == 4


def test_another_criterion_tells_the_share_of_the_counts(placed, counts, corpora, tmp_path):
    weights = ("--criterion", "aimer", "--schedule", "uniform")
    found = placed(6 * EXPERT, *weights, "--calibrated-on", corpora[0])
    chosen = [counts[row["layer"]][expert] for row in found["layers"] for expert in row["device"]]
    assert found["served"] == pytest.approx(sum(chosen) / total(counts))
    assert len(found["counted_in"]) == 1
    assert len(placed(6 * EXPERT, *weights)["counted_in"]) == 2  # of both corpora
    unknown = placed(6 * EXPERT, *weights, folder=tmp_path / "nothing")
    assert (unknown["served"], unknown["counted_in"]) == (None, [])
    assert unknown["llama_cpp"]["served"] == pytest.approx(1 / 3)


def test_live_traffic_chooses_as_well(works, tiny, placed, here):
    layers = load_model_index(str(tiny)).layers
    traces = write_traces(here / "monday.jsonl", layers)
    works("runs", "import", traces, "--model", tiny, "--stats-dir", here / "live")
    found = placed(9 * EXPERT, "--calibrated-on", "monday", folder=here / "live")
    # Low ids come more often in these answers: half of the experts serve more than half.
    assert 0.6 < found["served"] < 1
    assert "monday" in found["counted_in"][0]


def test_bits_make_experts_smaller(placed, corpora, others):
    # Q8_0: rows of 16 take 16 bytes and a scale of 2, rows of 24 take 26.
    expert = 2 * 24 * 18 + 16 * 26
    found = placed(7 * expert, "--bits", "8", "--calibrated-on", corpora[0])
    assert found["device_bytes"] == others + 7 * expert


@pytest.mark.parametrize("room", range(0, 140, 10))
def test_as_many_layers_as_bytes_allow(tiny, room):
    model, sizes = load_model_index(str(tiny)), {0: [10] * 6, 2: [5] * 6, 3: [7] * 6}
    placement = place_layers(model, sizes, room, None)
    most = max(
        number
        for number in range(4)
        for chosen in combinations(sizes, number)
        if sum(sum(sizes[layer]) for layer in chosen) <= room
    )
    whole = [layer.layer for layer in placement.layers if layer.is_whole]
    assert len(whole) == most
    assert sum(sum(sizes[layer]) for layer in whole) <= room
    assert placement.served == pytest.approx(np.mean([layer in whole for layer in sizes]))
