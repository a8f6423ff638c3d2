"""The demo quantised in llama.cpp: the table, and two samples of each corpus by the engine."""

import math

import pytest

from pruning import Model
from tools.engines.environments import python_of
from tools.engines.quantised_loss import (
    ENGINE,
    ORIGINAL,
    QuantisedFile,
    ask_engine,
    files_of,
    held_out,
    increase,
    losses_in_float32,
    mean_loss,
    plans,
    read_files,
    table,
    write_head,
)

FLOAT32 = {"demo-code": [2.0, 2.5], "demo-math": [0.5, 0.5]}
FILE = QuantisedFile(
    checkpoint=ORIGINAL,
    scope="experts",
    type="Q4_0",
    file_bytes=3 << 20,
    expert_bytes=5 << 19,
    tensors={"experts Q4_0": 18},
    fallbacks=(),
    alike=(9, 9),
    losses={"demo-code": [2.1, 2.8], "demo-math": [0.5, 0.7]},
    dequantised={"demo-code": [2.0, 2.7], "demo-math": [0.5, 0.6]},
)


def test_an_increase_is_the_mean_over_corpora_with_the_error_of_paired_samples():
    found = increase(FILE.losses, FLOAT32)
    # Pairs lie 0.1 and 0.3 above, then 0 and 0.2: variances 0.02 of two samples each.
    assert found.mean == pytest.approx((0.2 + 0.1) / 2)
    assert found.error == pytest.approx(math.sqrt(0.02 / 2 + 0.02 / 2) / 2)
    # Two more windows of the same two documents tell nothing more.
    twice = [{name: loss * 2 for name, loss in losses.items()} for losses in (FILE.losses, FLOAT32)]
    documents = dict.fromkeys(FLOAT32, (0, 1, 0, 1))
    assert increase(*twice, documents).error == pytest.approx(found.error)
    assert increase(*twice).error < found.error


def test_corpora_count_alike():
    assert mean_loss({"long": [1.0] * 9, "short": [3.0]}) == 2


def test_a_row_states_bytes_losses_and_their_increase():
    other = QuantisedFile(**{**vars(FILE), "scope": "everything", "dequantised": None})
    lines = table([FILE, other], {ORIGINAL: FLOAT32}).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    row = "3.00 | 2.50 | 2.4500 | 0.6000 | 1.5250 | +0.1500 ± 0.0707 |"
    assert lines[2] == f"| original | experts | Q4_0 | {row} +0.0750 |"
    assert lines[3] == f"| original | everything | Q4_0 | {row}  |"


@pytest.mark.engines
def test_llama_cpp_agrees_in_float32_and_quantises_as_documented(tmp_path):
    if python_of(ENGINE) is None:
        pytest.skip("no environment of llama.cpp: python -m tools.engines llama.cpp")
    model = Model("demo", stats_dir=tmp_path / "stats")
    samples = held_out(model, 2)
    name, plan = next(plans(model))
    checkpoint = model.export(plan, tmp_path / "original")
    write_head(checkpoint)
    float32 = losses_in_float32(checkpoint, samples, tmp_path / "stats")
    files = read_files(ask_engine(tmp_path, {name: checkpoint}, samples), samples)
    found = {(file.scope, file.type): file for file in files}
    assert list(found) == files_of(ORIGINAL)

    # Float32 in both; orders of sums differ.
    assert abs(increase(found["everything", "F32"].losses, float32).mean) < 1e-4
    weights = found["everything", "F32"].expert_bytes // 4
    bits = {"Q8_0": 8.5, "Q5_0": 5.5, "Q4_1": 5, "Q4_0": 4.5, "IQ4_NL": 4.5, "MXFP4": 4.25}
    for kind, width in bits.items():
        assert found["experts", kind].expert_bytes == weights * width / 8
        assert found["experts", kind].tensors["attn_q F32"] == 6
    alike = {kind for kind in bits if found["experts", kind].alike}
    assert alike == bits.keys() - {"IQ4_NL"}
    assert all(len(set(found["experts", kind].alike)) == 1 for kind in alike)

    # Rows of 64 and 128 are no multiples of the 256 that Q2_K needs.
    q2, q4 = found["everything", "Q2_K"], found["everything", "Q4_0"]
    assert (q2.tensors, q2.losses) == (q4.tensors, q4.losses)
    assert "43 of 75 tensor(s) required fallback quantization" in q2.fallbacks[-1]
