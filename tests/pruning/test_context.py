"""Sequences beyond the context that a model was made for, wherever corpora become tokens."""

import json

import pytest
from exports import keeping

from analysis.corpora.early import context_of
from analysis.drain import drain
from analysis.errors import CorpusError
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from builders.tokens import write_ids
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.repair import RepairRequest
from pruning.tasks.calibration import prepare_calibration
from pruning.tasks.evaluation import drawn_corpora
from pruning.tasks.repair import repair_run

CONTEXT = 64  # of the tiny models


@pytest.fixture
def tiny(checkpoint):
    return str(checkpoint("olmoe").path)


def ids(folder, *lengths):
    """A corpus of rows of token ids of these lengths."""
    rows = ([3 + n % 50 for n in range(length)] for length in lengths)
    return str(write_ids(folder / "ids.jsonl", rows))


def prepared(model, corpus, tmp_path, **options):
    request = CalibrateRequest(model=model, corpus=corpus, stats_dir=tmp_path / "s", **options)
    return drain(prepare_calibration(request))[1]


def text(folder, *words):
    """A corpus of texts of so many words."""
    rows = [{"text": " ".join(["word"] * count)} for count in words]
    (folder / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "text.jsonl")


def test_rows_of_ids_that_are_kept_whole_are_refused_beyond_the_context(tiny, tmp_path):
    corpus = ids(tmp_path, 10, CONTEXT, CONTEXT + 1, 200, 30)
    with pytest.raises(CorpusError, match=r"2 of 5 sequences .* 64 tokens; the longest has 200\."):
        prepared(tiny, corpus, tmp_path)
    cut = prepared(tiny, corpus, tmp_path, seq_len=CONTEXT)
    assert sorted(map(len, cut.rows)) == [10, 30, CONTEXT, CONTEXT, CONTEXT]
    dropped = prepared(tiny, corpus, tmp_path, seq_len=CONTEXT, truncate="drop")
    assert sorted(map(len, dropped.rows)) == [10, 30, CONTEXT]


@pytest.mark.parametrize("packing", ["pad", "concatenate", "pack"])
def test_texts_are_refused_beyond_the_context_if_such_length_was_asked_for(packing, tmp_path):
    context = context_of(load_model_index("demo"))
    corpus = text(tmp_path, 3 * context, 3 * context)
    with pytest.raises(CorpusError, match=f"longer than the context of demo.*{context}"):
        prepared("demo", corpus, tmp_path, packing=packing, seq_len=2 * context)
    fits = prepared("demo", corpus, tmp_path, packing=packing, seq_len=context)
    assert fits.longest == context


def test_packed_documents_count_from_their_own_starts(tmp_path):
    context = context_of(load_model_index("demo"))
    corpus = text(tmp_path, *[context // 4] * 8)
    packed = prepared("demo", corpus, tmp_path, packing="pack", seq_len=2 * context)
    assert packed.longest > context


def test_a_usual_length_beyond_the_context_is_cut_with_a_line(tiny, tmp_path):
    corpus = ids(tmp_path, *[40] * 20)
    request = CalibrateRequest(
        model=tiny, corpus=corpus, packing="concatenate", stats_dir=tmp_path / "s"
    )
    steps, said = prepare_calibration(request), []
    while True:
        try:
            said.append(str(next(steps)))
        except StopIteration as stopped:
            sequences = stopped.value[1]
            break
    assert any("sequences of 64 tokens instead of 256" in line for line in said)
    assert {len(row) for row in sequences.rows} == {CONTEXT}


def test_evaluations_and_repairs_refuse_them_too(tiny, tmp_path):
    corpus, model = ids(tmp_path, *[200] * 8), load_model_index(tiny)
    store = stats_store(tmp_path / "s")
    request = EvaluateRequest(model=tiny, corpora=(corpus,), seq_len=128, samples=2)
    with pytest.raises(CorpusError, match="longer than the context"):
        drain(drawn_corpora(request, model, store))
    usual = EvaluateRequest(model=tiny, corpora=(corpus,), samples=2)
    (drawn,) = drain(drawn_corpora(usual, model, store))
    assert drawn.sequences.longest == CONTEXT
    plan = keeping(model, (0, 1, 2)).to_dict()
    repair = RepairRequest(model=tiny, plan=plan, corpora=(corpus,), stats_dir=tmp_path / "s")
    with pytest.raises(CorpusError, match="longer than the context"):
        drain(repair_run(repair))
