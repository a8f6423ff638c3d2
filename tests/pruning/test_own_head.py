"""A head that is tied to the embedding is written where the family's engines need one."""

import json
import re
from dataclasses import replace

import gguf
import pytest
import torch
from exports import export, keeping, keeping_neurons, tensors_of, verified
from transformers import AutoModelForCausalLM

from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from builders import as_gib, tiny_model
from pruning import load_pruned
from pruning.plan.budget import SizeTarget, size_budget
from pruning.plan.plan import keep_all, with_top_k
from pruning.plan.sizes import ModelPart, neuron_plan_sizes, size_report, weight_bytes
from pruning.plan.widths import WidthChoice, WidthMode
from pruning.records.evaluation import EvaluationStore
from pruning.records.front import front_of
from pruning.records.quality import stored_losses
from pruning.serving.engines import Reads, contents_of, verdicts
from pruning.surgery.width_sizes import width_options

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
TOKENS = torch.arange(3, 35)[None]


def saved(folder, model_type="olmoe", *, is_tied=True, **changes):
    """A tied model in several shards."""
    tiny_model(model_type, tie_word_embeddings=is_tied, **changes).save_pretrained(
        folder, max_shard_size="20KB"
    )
    return load_model_index(str(folder))


@pytest.fixture
def tied(tmp_path):
    return saved(tmp_path / "source")


@pytest.mark.parametrize("options", [{}, {"max_shard_bytes": 30_000}], ids=str)
def test_an_export_holds_the_embedding_as_its_head(tied, tmp_path, options):
    assert HEAD not in tied.checkpoint.tensors
    plan = keeping(tied, (0, 2, 3, 6))
    export(tied, plan, tmp_path / "out", **options)
    made = tensors_of(tmp_path / "out")
    assert torch.equal(made[HEAD], made[EMBEDDING])
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    )
    report = verified(tmp_path / "out", source=tied.checkpoint.path)
    assert report.level == "logits"
    (accounts,) = (check.detail for check in report.checks if check.name == "source")
    of_source, copied, cut, dropped = map(int, re.findall(r"\b\d+\b", accounts))
    assert of_source == copied + cut + dropped == len(tied.checkpoint.tensors)
    stock, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    with torch.no_grad():
        assert torch.equal(stock(TOKENS).logits, load_pruned(tmp_path / "out")(TOKENS).logits)


def test_engines_read_the_export_and_not_the_source(tied):
    def refusing(contents):
        refused = (Reads.FAILS, Reads.WRONG)
        return {verdict.engine for verdict in verdicts(contents) if verdict.reads in refused}

    assert refusing(contents_of(tied)) == {"vLLM", "llama.cpp"}
    assert refusing(contents_of(tied, keeping(tied, (0, 2, 3, 6)))) == set()


def test_sizes_of_a_plan_count_the_head(tied, tmp_path):
    plan = keeping(tied, (0, 2, 3, 6))
    export(tied, plan, tmp_path / "out")
    made = load_model_index(str(tmp_path / "out"))
    report, there = size_report(tied, plan), size_report(made)
    head = 96 * 16
    removed = 3 * 3 * (3 * 16 * 24 + 16)  # experts of three layers, with their rows of the router
    assert report.params_before - removed == report.params_after  # a copy is no new weight
    assert report.bytes_after == made.checkpoint.nbytes
    assert report.params_after + head == there.params_before
    assert report.active_after + head == there.active_before
    card = (made.checkpoint.path / "README.md").read_text()
    assert f"a copy of the embedding, {head:,} parameters" in card
    assert report.loaded("bfloat16")[1] == there.loaded("bfloat16")[0]
    assert weight_bytes(tied, plan) == report.bytes_after
    assert size_report(tied).bytes_after == tied.checkpoint.nbytes
    # The target holds with the head and not a byte below it.
    exactly, below = as_gib(report.bytes_after), as_gib(report.bytes_after - 1)
    assert size_budget(tied, SizeTarget("size", exactly)).total == 9
    assert size_budget(tied, SizeTarget("size", below)).total > 9
    half = report.loaded("bfloat16")[1]
    assert size_budget(tied, SizeTarget("size", as_gib(half), "bfloat16")).total == 9
    assert size_budget(tied, SizeTarget("size", as_gib(half - 1), "bfloat16")).total > 9


CHANGES = {
    "nothing": keep_all,
    "experts": lambda model: keeping(model, (0, 2, 3, 6)),
    "top-k alone": lambda model: with_top_k(keep_all(model), model, 1),
}


def gguf_of(folder, kind, file):
    """Bytes of the tensors of a GGUF file that holds a checkpoint's, experts in `kind`.

    llama.cpp stops without a head, so the file has one.
    """
    tensors = tensors_of(folder)
    tensors.setdefault(HEAD, tensors[EMBEDDING])
    writer = gguf.GGUFWriter(file, "olmoe")
    for name, tensor in tensors.items():
        is_expert = ".experts." in name
        data = gguf.quants.quantize(tensor.float().numpy(), kind) if is_expert else tensor.numpy()
        writer.add_tensor(name, data, raw_dtype=kind if is_expert else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sum(tensor.n_bytes for tensor in gguf.GGUFReader(file).tensors)


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_size_said_is_that_of_the_file_written(change, is_tied, tmp_path):
    # Rows are whole groups of 32 weights.
    sizes = {"hidden_size": 64, "intermediate_size": 32}
    model = saved(tmp_path / "source", is_tied=is_tied, **sizes)
    plan = CHANGES[change](model)
    export(model, plan, tmp_path / "out")
    written = sum(tensor.nbytes for tensor in tensors_of(tmp_path / "out").values())
    report = size_report(model, plan)
    assert (report.bytes_after, report.bytes_before) == (written, model.checkpoint.nbytes)
    head = 96 * 64 * 4 * is_tied
    assert (HEAD in tensors_of(tmp_path / "out")) == (change != "nothing" or not is_tied)
    rows = report.table.set_index("part")[["before", "after"]]
    assert (ModelPart.TIED_HEAD in rows.index) == is_tied
    if is_tied:
        assert rows.loc[ModelPart.TIED_HEAD].tolist() == [0, head * (change != "nothing")]
    embeddings = rows.loc[ModelPart.EMBEDDINGS]
    assert embeddings["before"] == embeddings["after"] == 96 * 64 * 4 * (2 - is_tied)
    for bits, kind in (
        ("8", gguf.GGMLQuantizationType.Q8_0),
        ("4", gguf.GGMLQuantizationType.Q4_0),
    ):
        in_bits = gguf_of(tmp_path / "out", kind, tmp_path / f"{bits}.gguf")
        assert weight_bytes(model, replace(plan, bits=bits)) == in_bits


def test_a_predicted_size_of_a_tied_model_is_that_of_the_measured_cell():
    """Leave out cells that were measured: their sums have the same bytes, head included."""
    model = load_model_index("demo")
    losses = stored_losses(EvaluationStore((SHIPPED_STATS,)), model.identity)
    # Repaired, so that no other plan of this sparsity competes.
    cells = {
        loss.facts.bits: loss.facts.bytes_after
        for loss in losses
        if loss.is_repaired and loss.facts.criterion == "ean" and loss.facts.removed == 0.5
        if loss.facts.schedule == "uniform" and len(loss.facts.corpora) == 3
    }
    left = [loss for loss in losses if not (loss.facts.bits and loss.facts.removed)]
    table = front_of(model, left).table
    sums = table[~table["is_measured"] & (table["removed"] == 0.5) & (table["repaired_on"] != "")]
    found = dict(zip(sums["bits"], sums["bytes"], strict=True))
    assert len(found) == 7
    assert found == {bits: cells[bits] for bits in found}


def test_neurons_that_all_stay_under_a_smaller_top_k_have_the_head(tied, tmp_path):
    plan = with_top_k(keep_all(tied), tied, 1)
    assert neuron_plan_sizes(tied, plan)["disk"].dropna().unique().tolist() == [
        size_report(tied, plan).bytes_after
    ]


def test_neurons_go_and_the_head_is_written(tied, tmp_path):
    neurons = {layer.index: dict.fromkeys(range(7), tuple(range(8))) for layer in tied.layers}
    plan, choice = keeping_neurons(tied, neurons), WidthChoice(WidthMode.UNIFORM)
    export(tied, plan, tmp_path / "out", widths=choice)
    assert HEAD in tensors_of(tmp_path / "out")
    assert verified(tmp_path / "out", source=tied.checkpoint.path).level == "logits"
    option = next(
        width_option
        for width_option in width_options(tied, plan)
        if width_option.mode == choice.mode
    )
    files = (tmp_path / "out").glob("*.safetensors")
    assert option.disk_bytes == sum(file.stat().st_size for file in files)
    assert option.loaded_bytes == load_model_index(str(tmp_path / "out")).checkpoint.nbytes
