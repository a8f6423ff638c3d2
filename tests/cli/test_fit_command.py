"""evaluate --bits and fit: what was measured, what is summed, and the bytes, by hand."""

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from analysis.model.opening import load_model_index
from pruning.plan.plan_file import load_plan

BITS = {"8": (8, 2), "4": (4, 2), "2": (2, 4)}  # a code, and the scales of a group


@pytest.fixture
def own(here):
    return here / "own"


@pytest.fixture
def measure(works, tiny, corpora, own):
    """Evaluate plans of AIMER in some bits."""
    where = ("--corpus", corpora[1], "--samples", "3", "--seq-len", "9", "--stats-dir", own)
    return lambda bits, *words: works(
        *("sweep", tiny, "--criterion", "aimer", "--measure", "nll", "--force"),
        *(f"--bits={word}" for word in bits.split(",")),
        *(*where, *words),
    )


@pytest.fixture
def fit(works, tiny, own):
    """The ways to a size, as `fit --json` prints them."""

    def ways(size, *words):
        printed = works("fit", tiny, "--target-size", size, "--stats-dir", own, "--json", *words)
        return pd.DataFrame(json.loads(printed)["result"]["ways"])

    return ways


def experts_in(model, kept, bits):
    """Bytes of the kept experts: gate and up of (width, hidden), down of (hidden, width)."""
    code, scales = BITS[bits]
    tensors = model.checkpoint.tensors.items()
    hidden, width = next(entry.shape for name, entry in tensors if "experts.0.down" in name)

    def row(columns):
        whole, rest = divmod(columns, 32)
        return whole * (4 * code + scales) + (-(-rest * code // 8) + scales if rest else 0)

    return kept * (2 * width * row(hidden) + hidden * row(width))


def test_a_front_has_what_is_measured_and_sums_of_the_rest(measure, fit, works, tiny, own):
    measure("16,4,2", "--sparsity", "50%")
    measure("16,8", "--sparsity", "25%")
    ways = fit("1GiB", "--ways", "99").set_index(["removed", "bits"])
    assert ways["mean"].is_monotonic_increasing
    measured = {(0, ""), (0, "8"), (0, "4"), (0, "2"), (0.5, ""), (0.5, "4"), (0.5, "2")}
    (quarter,) = {removed for removed, _ in ways.index} - {0, 0.5}
    measured |= {(quarter, ""), (quarter, "8")}
    assert set(ways[ways["is_measured"]].index) == measured
    sums = ways[~ways["is_measured"]]
    assert set(sums.index) == {(0.5, "8"), (quarter, "4"), (quarter, "2")}
    for removed, bits in sums.index:
        expected = ways["mean"][removed, ""] + ways["mean"][0, bits]
        assert sums["mean"][removed, bits] == pytest.approx(expected)
    # The largest error of the sum where both are known is the band of what is predicted.
    both = [(0.5, "4"), (0.5, "2"), (quarter, "8")]
    errors = [
        abs(ways["mean"][at] - ways["mean"][at[0], ""] - ways["mean"][0, at[1]]) for at in both
    ]
    assert (sums["high"] - sums["mean"]).tolist() == pytest.approx([max(errors)] * 3)
    # So it is no 95% of anything, and is not called so.
    assert set(sums["range"]) == {"largest error"}
    assert set(ways["range"][ways["is_measured"]]) == {"95% of texts"}
    model = load_model_index(str(tiny))
    own_bytes = ways["bytes"][0, ""]
    tensors = model.checkpoint.tensors.items()
    expert_bytes = sum(entry.nbytes for name, entry in tensors if ".experts." in name)
    expert_bytes //= model.num_experts
    for removed, bits in ways.index:
        if bits:
            kept = round((1 - removed) * model.num_experts)
            saved = kept * expert_bytes - experts_in(model, kept, bits)
            assert ways["bytes"][removed, bits] == ways["bytes"][removed, ""] - saved
    assert own_bytes == model.checkpoint.nbytes
    said = works("plot", "loss-by-size", tiny, "--stats-dir", own, "-o", "size.csv")
    assert "8 bits alone give" in said
    assert "in 3 cells that are measured" in said


def test_a_tied_original_is_not_given_to_a_converter_that_refuses_it(works):
    printed = works("fit", "demo", "--target-size", "4.5MiB")
    assert "original, 4 bits: 4.3 MiB, loss +0.000" in printed
    assert "llama.cpp needs the tied embedding of demo written as head" in printed
    assert "convert_hf_to_gguf" not in printed


def test_it_says_how_to_make_the_best_way(measure, works, moeprune, tiny, own):
    measure("16,4", "--sparsity", "50%")
    smallest = load_model_index(str(tiny)).checkpoint.nbytes // 1024
    printed = works("fit", tiny, "--target-size", f"{smallest // 2}KiB", "--stats-dir", own)
    assert "moeprune plan" in printed
    assert "AIMER 50%, 4 bits" in printed
    assert "llama-quantize model.gguf model-Q4_0.gguf Q4_0" in printed
    assert "needs rows of 256" not in printed
    outcome = moeprune("fit", tiny, "--target-size", "1KiB", "--stats-dir", own)
    assert "No candidate takes at most 1,024 bytes; the smallest takes" in outcome.err
    assert outcome.code == 1


def test_its_commands_make_the_repair_whose_loss_it_says(works, tiny, corpora, own, here):
    place = ("--stats-dir", own)
    works("calibrate", tiny, "--corpus", corpora[0], "--tokens", "64", "--seq-len", "16", *place)
    ranked = ("--criterion", "reap", "--calibrated-on", corpora[0], "--sparsity", "50%")
    works("plan", tiny, *ranked, *place)
    blend = ("--corpus", corpora[0], "--corpus", corpora[1])  # not what ranked the plan
    words = ("--tokens", "64", "--seq-len", "8", "--seed", "3", "--dtype", "float64")
    works("repair", tiny, "--plan", "plan.json", *blend, *words, *place)
    where = ("--corpus", corpora[1], "--samples", "3", "--seq-len", "9", "--measure", "nll")
    works("evaluate", tiny, *where, *place)
    works("evaluate", tiny, "--plan", "repaired.json", *where, *place, "--force")
    nbytes = load_model_index(str(tiny)).checkpoint.nbytes - 1
    printed = works("fit", tiny, "--target-size", f"{nbytes // 1024}KiB", *place)
    lines = [line.removeprefix("next: moeprune ") for line in printed.splitlines()]
    (line,) = (line for line in lines if line.startswith("repair "))
    for corpus in map(Path, corpora[:2]):  # a record names a file by its folder and name alone
        line = line.replace(f"{corpus.parent.name}/{corpus.name}", str(corpus))
    measured = load_plan(here / "repaired.json").repair
    works(*shlex.split(line), "--force")
    assert load_plan(here / "repaired.json").repair == measured
    assert any(line.startswith("export ") and str(own) in line for line in lines)


def test_no_engine_is_asked_to_load_layers_that_differ(measure, fit, works, tiny, own):
    measure("16,4", "--sparsity", "50%", "--schedule", "global")
    ways = fit("1GiB", "--ways", "99")
    in_bits = ways["bytes"][(ways["removed"] == 0) & (ways["bits"] == "4")].item()
    size = f"{in_bits // 1024 - 1}KiB"  # what the original in four bits does not reach
    printed = works("fit", tiny, "--target-size", size, "--stats-dir", own)
    assert "only load_pruned loads it this small.\n" in printed
    assert "--schedule global" in printed and "llama-quantize" not in printed
    measure("16,4", "--sparsity", "50%")
    printed = works("fit", tiny, "--target-size", size, "--stats-dir", own)
    assert "the commands are of the best that are alike" in printed
    assert "--schedule global" not in printed and "llama-quantize" in printed


def test_the_best_that_engines_load_is_shown_though_others_lose_less(works):
    printed = works("fit", "demo", "--target-size", "3MiB", "--ways", "1")
    assert re.findall(r"│ (alike|differ)\s*$", printed, flags=re.M) == ["differ", "alike"]
    assert "llama-quantize" in printed


def test_rows_that_are_too_short_for_a_type_are_named(measure, works, tiny, own):
    measure("16,2", "--sparsity", "50%")
    printed = works("fit", tiny, "--target-size", "40KiB", "--stats-dir", own)
    assert "llama-quantize model.gguf model-Q2_K.gguf Q2_K" in printed
    assert "Q2_K needs rows of 256 weights" in printed


def test_a_model_that_was_not_evaluated_has_no_front(moeprune, tiny, own):
    outcome = moeprune("fit", tiny, "--target-size", "1GiB", "--stats-dir", own)
    assert "The original was not evaluated" in outcome.err


def test_evaluate_names_the_bits_and_refuses_what_saves_nothing(
    works, moeprune, tiny, corpora, own
):
    words = ("evaluate", tiny, "--corpus", corpora[1], "--samples", "3", "--stats-dir", own)
    printed = works(*words, "--bits", "16", "--bits", "mxfp4")
    assert "original, MXFP4" in printed
    outcome = moeprune(*words, "--bits", "7", "--force")
    assert "--bits: choose '16', '8'" in outcome.err
