"""Tables that name the experts of every token id, in exports: renumbered, verified, or refused."""

import numpy as np
import pytest
import torch
from exports import edit_tensors, export, failed, shards_of, tensors_of, verified

from analysis.errors import CheckpointError, ExportError
from analysis.families.token_tables import renumbered
from analysis.model.opening import load_model_index
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.sizes import BYTES, ModelPart, size_report
from pruning.surgery.pieces import Renumber

CASE = BY_NAME["deepseek_v4"]
TABLE = "model.layers.0.ffn.gate.tid2eid"
EXPERTS, TOKENS, PER_TOKEN = 11, 300, 3


def table_of(dtype="int64"):
    rng = np.random.default_rng(4)
    return rng.permuted(np.tile(np.arange(EXPERTS), (TOKENS, 1)), axis=1)[:, :PER_TOKEN].astype(
        dtype
    )


@pytest.mark.parametrize("kept", [(0, 2, 5, 6, 10), (1, 4, 9), (0, 3, -1, 7, 8, -1)], ids=str)
def test_rows_keep_what_stays_and_name_others_once(kept):
    table = table_of()
    made = renumbered(table, kept, EXPERTS)
    assert made.shape == table.shape
    for row, before in zip(made.tolist(), table.tolist(), strict=True):
        assert len(set(row)) == PER_TOKEN
        for new, old in zip(row, before, strict=True):
            assert kept[new] >= 0
            assert kept[new] == old or old not in kept


def test_tokens_of_a_removed_expert_are_spread_evenly():
    made = renumbered(np.full((60, 1), 3), (0, 1, 5, 9), EXPERTS)
    assert np.bincount(made[:, 0]).tolist() == [15, 15, 15, 15]


@pytest.mark.parametrize("dtype", ["<i8", "<i4"])
def test_parts_of_a_table_give_what_the_whole_gives(tmp_path, dtype):
    table, kept = table_of(dtype), (1, 4, 6, 9)
    (tmp_path / "file").write_bytes(b"12345678" + table.tobytes())
    piece = Renumber(8, TOKENS, PER_TOKEN, dtype, kept, EXPERTS)
    found = b""
    with (tmp_path / "file").open("rb") as file:
        for part in piece.parts(500):
            target = bytearray(part.nbytes)
            part.read(file.fileno(), memoryview(target), "file")
            found += target
    assert len(found) == piece.nbytes
    assert found == renumbered(table, kept, EXPERTS).tobytes()


@pytest.fixture
def model(tmp_path):
    def make(change=None):
        source = tmp_path / "source"
        tiny_model(CASE).save_pretrained(source, save_original_format=True)
        if change:
            edit_tensors(*shards_of(source), lambda held: {**held, TABLE: change(held[TABLE])})
        return load_model_index(str(source))

    return make


def keeping_some(model):
    kept = {layer.index: (0, 2, 3, 6) for layer in model.layers}
    return PruningPlan(model_ref(model), {**kept, 2: tuple(range(7)), 3: (0, 2, 3, 4)})


def test_narrow_tables_are_written_and_verified(model, tmp_path):
    source, out = model(lambda table: table.int()), tmp_path / "out"
    export(source, keeping_some(source), out)
    assert verified(out, source=source.checkpoint.path).level == "logits"
    before, after = tensors_of(source.checkpoint.path), tensors_of(out)
    assert after[TABLE].dtype == torch.int32
    assert after[TABLE].max() == 3
    # A layer that loses nothing keeps its table.
    whole = TABLE.replace("layers.0", "layers.2")
    assert torch.equal(before[whole], after[whole])


def test_verification_sees_a_token_that_goes_to_another_expert(model, tmp_path):
    source, out = model(), tmp_path / "out"
    export(source, keeping_some(source), out)
    edit_tensors(*shards_of(out), lambda held: {**held, TABLE: held[TABLE].flip(1)})
    assert failed(out, source=source.checkpoint.path)


def test_a_table_that_cannot_be_renumbered_is_refused(model, tmp_path):
    with pytest.raises(CheckpointError, match=r"names experts 0 to 9, but its layer has 7"):
        source = model(lambda table: table.index_fill(0, torch.tensor([5]), 9))
        export(source, keeping_some(source), tmp_path / "out")
    with pytest.raises(ExportError, match="should be a table of expert ids, but has the type F32"):
        source = model(lambda table: table.float())
        export(source, keeping_some(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tables_are_as_long_whatever_stays_and_hold_no_weights(model):
    source = model()
    report, loaded = size_report(source, keeping_some(source)), tiny_model(CASE)
    biases = [buffer for name, buffer in loaded.named_buffers() if name.endswith("_bias")]
    held = (*loaded.parameters(), *biases)
    assert report.params_before == sum(tensor.numel() for tensor in held)
    before, after = (p[ModelPart.ROUTERS][BYTES] for p in (report.before, report.after))
    tables, row, bias = 2 * 64 * 2 * 8, 16 * 4, 4
    assert before == tables + 4 * 7 * row + 2 * 7 * bias
    # Layers 0, 1 and 3 lose three experts each; 1 and 3 have biases.
    assert before - after == 3 * 3 * row + 2 * 3 * bias
