from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest

from analysis.cache_keys import key_of, most_results
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from app.session.data import remembered
from pruning.requests.plan import SpecRequest
from pruning.spec.spec import spec_of
from pruning.study import Study


def request(**fields):
    return SpecRequest(model="demo", plan=spec_of(criterion="reap", sparsity="50%", **fields))


def test_equal_arguments_are_computed_once():
    calls = []

    def half(request, share, parts):
        calls.append(request.plan.ranking.corpora)
        return object()

    def ask(*corpora):
        return remembered(half, request(corpora=corpora), Fraction(1, 2), {"a": [1, None]})

    assert ask("demo-code") is ask("demo-code") is not ask("demo-math")
    assert calls == [("demo-code",), ("demo-math",)]


def test_a_function_with_large_results_has_few_of_them():
    calls = []

    @most_results(1)
    def twice(number):
        calls.append(number)

    for number in (1, 1, 2, 1):
        remembered(twice, number)
    assert calls == [1, 2, 1]


def test_a_type_without_a_key_is_refused():
    with pytest.raises(TypeError, match="SimpleNamespace has no cache_key"):
        key_of({"stats": [SimpleNamespace()]})


def test_a_ranking_is_known_by_its_spec_and_the_tables_it_read():
    model, store = load_model_index("demo"), StatsStore(SHIPPED_STATS)
    asked = request(corpora=("demo-code",))
    first = Study.of(asked, model, store).ranking(asked.plan)
    assert key_of(replace(first)) == key_of(first)
    assert key_of(replace(first, spec=request().plan)) != key_of(first)
    assert key_of(replace(first, place=replace(first.place, model="other"))) != key_of(first)
    assert key_of(replace(first, choice=replace(first.choice))) != key_of(first)


def test_a_run_is_another_with_more_groups_and_a_store_with_less_runs(tmp_path):
    store = StatsStore(SHIPPED_STATS)
    run = store.runs()[0]
    more = replace(run, manifest=replace(run.manifest, groups=(*run.manifest.groups, "dense")))
    assert key_of(more) != key_of(run) == key_of(replace(run))
    assert key_of(StatsStore(tmp_path)) != key_of(store) == key_of(StatsStore(SHIPPED_STATS))
