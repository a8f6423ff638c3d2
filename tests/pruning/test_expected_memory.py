"""Memory that a dry run says: of evaluations, by layers too, and of repairs."""

import numpy as np
import pytest
from hollow import experts, hollow

from analysis.calibration.blocks import layer_sizes
from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.corpora.sequences import TokenSequences
from analysis.errors import UnsupportedModelError
from analysis.model.opening import load_model_index
from analysis.progress import bytes_of
from pruning.plan.plan import PruningPlan, keep_all, model_ref
from pruning.repair.estimate import FitSizes, estimate_repair, memory_of_repair, repair_memory
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.repair import DEFAULT_REPAIR_TOKENS
from pruning.spec.base import validated
from pruning.tasks.memory import Running, evaluation_memory


def test_an_evaluation_with_repairs_takes_what_the_larger_of_both_takes():
    length = 256
    values = {"model": "demo", "corpora": ["demo-math"], "samples": 8, "repair": True}
    running = Running.of(validated(EvaluateRequest, {**values, "dtype": "float32"}))
    row = np.zeros(length, np.int32)
    text = TokenSequences("text", (row,) * (DEFAULT_REPAIR_TOKENS // length), 1, 0)
    settings = CalibrationSettings(length, dtype="float32", device="cpu")
    model = load_model_index("demo")
    alone = repair_memory(model, keep_all(model), [text], settings).total
    repair = running.with_repairs(0, repairs=True)
    assert repair == pytest.approx(alone, rel=0.25)
    assert running.with_repairs(repair + 1, repairs=True) == repair + 1
    assert running.with_repairs(1, repairs=False) == 1


def test_a_repair_reads_the_model_once_however_often_its_text_runs():
    model, settings = load_model_index("demo"), CalibrationSettings(8, device="cpu", batch_size=4)
    half = {layer.index: tuple(range(layer.num_experts // 2)) for layer in model.layers}
    plan, rows = PruningPlan(model_ref(model), half), (np.zeros(8, np.int32),) * 4
    texts = (TokenSequences("text", count * rows, 1, 0) for count in (1, 2))
    once, twice = (bytes_of(estimate_repair(model, plan, [text], settings).whole) for text in texts)
    assert once == twice
    assert 0.5 * model.checkpoint.nbytes < once <= model.checkpoint.nbytes


def test_a_repair_is_expected_to_fit_every_layer():
    """Nothing is done before it runs; of each layer that gains nothing it leaves something out."""
    model, settings = load_model_index("demo"), CalibrationSettings(8, device="cpu", batch_size=4)
    half = {layer.index: tuple(range(layer.num_experts // 2)) for layer in model.layers}
    text = TokenSequences("text", (np.zeros(8, np.int32),) * 4, 1, 0)
    whole = estimate_repair(model, PruningPlan(model_ref(model), half), [text], settings).whole
    assert whole.left == whole.total
    assert min(whole.left[kind] for kind in ("observe", "fit", "invert")) > 0


def test_blocks_are_refused_in_a_dtype_without_grouped_products_before_a_model_is_loaded():
    text = TokenSequences("text", (np.zeros(8, dtype=np.int32),), 1, 0)
    model = load_model_index("demo")

    def memory(at_once):
        place = Placement(stream_layers=True, experts_at_once=at_once)
        settings = CalibrationSettings(8, dtype="float64", device="cpu", placement=place)
        return repair_memory(model, keep_all(model), [text], settings)

    assert not memory(0).at_once
    with pytest.raises(UnsupportedModelError, match="in blocks in float64"):
        memory(2)


@pytest.mark.parametrize("at_once", [1, 3])
def test_as_many_columns_are_solved_together_as_a_block_of_experts_leaves_room_for(at_once):
    model, place = load_model_index("demo"), Placement(stream_layers=True, experts_at_once=at_once)
    settings = CalibrationSettings(8, dtype="float32", device="cpu", placement=place)
    fit = FitSizes(kept=0, lacking=500, columns=20_000, one=9_000)
    memory = memory_of_repair(model, fit, running=100, hidden=0, settings=settings)
    around = layer_sizes(model, settings).around
    taken = [
        around + 100 + 500 + fit.one + number * fit.columns
        for number in (memory.columns, memory.columns + 1)
    ]
    assert memory.columns > 1
    assert taken[0] <= memory.device < taken[1]
    large = FitSizes(kept=0, lacking=500, columns=1 << 30, one=0)
    assert memory_of_repair(model, large, 100, 0, settings).columns == 1


@pytest.mark.parametrize(
    ("changed", "copies"),
    [({}, 0), ({"bits": ["16"]}, 0), ({"bits": ["16", "8"]}, 1)],
    ids=str,
)
def test_experts_are_there_twice_only_where_plans_change_them(tmp_path, changed, copies):
    # 144 MiB of experts in a layer, far more than all else.
    config = {"model_type": "olmoe", "num_hidden_layers": 1, "num_experts": 24}
    config |= {"num_experts_per_tok": 8, "hidden_size": 512, "intermediate_size": 1024}
    config |= {"vocab_size": 512, "dtype": "float32"}
    tensors = {"model.embed_tokens.weight": (512, 512)}
    tensors |= experts("model.layers.0.mlp", 24, 512, 1024)
    path = hollow(tmp_path / "model", config, tensors)
    model = load_model_index(str(path))
    plan = PruningPlan(model_ref(model), {0: tuple(range(12))}).to_dict()
    values = {"corpora": ["demo-math"], "samples": 1, "seq_len": 8, "stream_layers": True}
    values |= {"model": str(path), "dtype": "float32", "device": "cpu"}
    without, given = (
        validated(EvaluateRequest, {**values, "plans": [plan], **more}) for more in ({}, changed)
    )
    running = Running.of(given)
    assert running.memory(1, changes=True) - running.memory(1) == 144 << 20
    more = evaluation_memory(given) - evaluation_memory(without)
    assert more == pytest.approx(copies * (144 << 20), abs=16 << 20)
