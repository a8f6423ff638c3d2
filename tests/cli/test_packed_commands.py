"""Checkpoints that cannot be run here: every command that is offered next can be run."""

import json
import shlex

import pytest

from layouts.small_packed import small_packed

METHODS = ("gptq", "awq")


def next_of(said):
    """The commands that an output offers."""
    lines = [line.removeprefix("next: ") for line in said.splitlines() if line.startswith("next: ")]
    return [shlex.split(line)[1:] for line in lines]


@pytest.mark.parametrize("method", METHODS)
def test_what_is_offered_next_can_be_run(works, here, method):
    small_packed(here / "packed", method)
    said = works("inspect", "packed")
    assert f"cannot be calibrated, as checkpoints quantised with {method}" in said
    assert not next_of(said)
    offered = next_of(works("plan", "packed", "--criterion", "random", "--sparsity", "50%"))
    assert [words[0] for words in offered] == ["export"]
    while offered:
        ran, said = offered[0], works(*offered.pop(0))
        offered += next_of(said)
    assert ran[0] == "verify"
    assert "level bytes" in said
    assert "not checked: whether it loads, and its logits" in said
    small = json.loads((here / "packed-pruned" / "config.json").read_text())
    assert small["num_experts"] == 3


def test_sizes_from_a_configuration_offer_no_calibration(works, here):
    small_packed(here / "packed", "awq")
    (here / "packed" / "model.safetensors").unlink()
    words = ("plan", "packed", "--config-only", "--sparsity", "50%")
    assert not next_of(works(*words))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", "packed", "--criterion", "aimer", "--sparsity", "50%"), "dtype I32"),
        (("score", "packed", "--criterion", "aimer"), "dtype I32"),
        (("calibrate", "packed", "--corpus", "rows.jsonl"), "cannot be calibrated"),
        (("calibrate", "packed", "--corpus", "rows.jsonl", "--dry-run"), "cannot be calibrated"),
        (("evaluate", "packed", "--corpus", "rows.jsonl"), "quantised with"),
    ],
    ids=lambda words: " ".join(words[:1]) if isinstance(words, tuple) else "",
)
def test_what_needs_weights_is_refused_in_a_line(refused, here, method, words, says):
    small_packed(here / "packed", method)
    (here / "rows.jsonl").write_text('{"input_ids": [5, 6, 7, 8, 9, 10, 11, 12]}\n' * 40)
    assert says in refused(*words)
