"""Fewer experts per token in each layer: what they cost, by plain transformers and by hand."""

import json
import shutil
from itertools import product

import numpy as np
import pytest
import torch
from masked_cases import sequences

from analysis.drain import drain
from analysis.errors import PlanError
from analysis.model.opening import load_model_index
from families.built import stock_load
from families.configs import BY_NAME
from families.physical import layers_of
from families.tiny_models import tiny_model
from pruning.engine.candidate import MeasureSettings
from pruning.engine.full_side import run_full
from pruning.measurements.block import SampleSet
from pruning.measures.curves import Sensitivity, curves_of
from pruning.measures.points import MEASURES, fewer_points, whole_point
from pruning.measures.samples import make_samples
from pruning.plan.units import Units
from pruning.planning.per_token import order_per_token
from pruning.records.sensitivity import SensitivityRecord, SensitivityStore
from pruning.search.fitness import MaskedRuns, Subject
from pruning.search.sensitivity import Measuring

# Softmax, then top-k; the same, renormalised; sigmoid, bias and groups; top-k, then softmax.
ROUTERS = ("flex_olmo", "olmoe-normalised", "deepseek_v3-groups", "granitemoe")
DOUBLE = {"dtype": torch.float64, "experts_implementation": "eager"}


def plain(case, path, numbers):
    """The model of transformers in float64 whose layers select these numbers of experts."""
    models = {}
    for number in dict.fromkeys(numbers):
        folder = path.parent / f"top-{number}"
        if not folder.exists():
            shutil.copytree(path, folder)
            config = json.loads((folder / "config.json").read_text())
            config["num_experts_per_tok"] = number
            (folder / "config.json").write_text(json.dumps(config))
        models[number] = stock_load(case, folder, **DOUBLE)[0]
    whole = models[numbers[0]]
    for layer, number in zip(case.sparse, numbers, strict=True):
        layers_of(whole)[layer] = layers_of(models[number])[layer]
    return whole


def losses(model, texts):
    """The mean loss of each sequence on its counted tokens, one at a time."""
    means = []
    for row, counted in zip(texts.rows, texts.counted, strict=True):
        ids = torch.tensor(row[None].astype("int64"))
        with torch.no_grad():
            logs = model(input_ids=ids, use_cache=False).logits[0, :-1].double().log_softmax(-1)
        own = -logs.gather(1, ids[0, 1:, None])[:, 0]
        means.append(float(own[torch.tensor(counted[1:])].mean()))
    return means


def measured(case, path, folder):
    """All allocations of a tiny model, measured by the program."""
    described = load_model_index(str(path))
    order, few = order_per_token(described), sequences()
    samples, loaded = make_samples(few, 2), stock_load(case, path, **DOUBLE)[0]

    def load():
        full = yield from run_full(loaded, samples)
        subject = Subject(loaded, described.family, case.sparse, full, order.plan_of)
        return MaskedRuns(subject, MeasureSettings(MEASURES))

    record = SensitivityRecord.begun(
        ("sensitivity", "top-k"),
        {"case": str(case)},
        model={"name": "tiny", "identity": described.identity},
        order={"criterion": "top-k", "granularity": "experts per token", "digest": "aa"},
        corpus={"name": "text", "seed": 42},
        layers=tuple(order.sizes.items()),
        settings={"dtype": "float64"},
    )
    where = SampleSet("text", few.digest, "float64", 42)
    store = SensitivityStore([folder])
    work = Measuring(store, record, samples, where, order.plan_of, load, stay=order.stay)
    wholes = product(*(range(most + 1) for most in order.units.most))
    drain(work.measure([*fewer_points(order.units, 8), *map(whole_point, wholes)]))
    return work, order


@pytest.mark.parametrize("name", ROUTERS)
def test_a_number_a_layer_costs_what_plain_transformers_computes(name, tmp_path):
    case = BY_NAME[name]
    tiny_model(case).save_pretrained(tmp_path / "model")
    work, order = measured(case, tmp_path / "model", tmp_path / "stats")
    place, seen = MEASURES.index("nll"), set()
    for removed in product(range(case.top_k), repeat=len(case.sparse)):
        numbers = [case.top_k - less for less in removed]
        wanted = losses(plain(case, tmp_path / "model", numbers), sequences())
        values = work.points.values(removed, work.samples)[:, place]
        # Routers compute in float32, also in a float64 model.
        np.testing.assert_allclose(values, wanted, rtol=2e-6)
        seen.add(round(float(np.mean(wanted)), 6))
    assert len(seen) == case.top_k ** len(case.sparse)  # each allocation has a loss of its own
    # All experts stay, which the table says of every point.
    for plan in (order.plan_of((1,) * len(case.sparse)), order.plan_of((0,) * len(case.sparse))):
        (block,) = {
            b.kept for b in work.store.table.blocks(plan.model.identity, plan.digest, "float64")
        }
        assert block == (case.experts,) * len(case.sparse)


def test_the_allocation_is_the_cheapest_of_all(tmp_path):
    case = BY_NAME["deepseek_v3-groups"]
    tiny_model(case).save_pretrained(tmp_path / "model")
    work, order = measured(case, tmp_path / "model", tmp_path / "stats")
    for cost in ("esap", "kl", "nll"):
        curves = curves_of(work.points, len(case.sparse), cost, work.samples)
        assert [curve.removed.tolist() for curve in curves.layers] == [[0, 1, 2], [0, 1, 2]]
        spread = Sensitivity((curves,), cost)
        for total in range(5):
            every = [pair for pair in product(range(3), repeat=2) if sum(pair) == total]
            sums = [
                sum(c.costs[n] for c, n in zip(curves.layers, pair, strict=True)) for pair in every
            ]
            found = spread.solution(order.units, total)
            assert found.removed == every[int(np.argmin(sums))]
            assert found.cost == pytest.approx(min(sums), abs=1e-12)


def test_one_less_is_measured_whatever_the_levels():
    units = Units((22, 4, 1), (0,) * 3, (21, 3, 0))
    levels = [
        [point.level for point in fewer_points(units, 2) if point.position == row]
        for row in range(3)
    ]
    # 22 / 2 and the most, 4 / 2 and the most; then one less in each that can.
    assert levels == [[11, 21, 1], [2, 3, 1], []]


def test_a_router_that_selects_one_or_a_fixed_number_is_refused(tmp_path):
    tiny_model(BY_NAME["phimoe"]).save_pretrained(tmp_path / "phimoe")
    with pytest.raises(PlanError, match="always selects 2"):
        order_per_token(load_model_index(str(tmp_path / "phimoe")))
