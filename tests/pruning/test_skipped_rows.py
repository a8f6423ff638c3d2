"""Bad rows that are left out: counted in manifests and records, printed, and never read twice."""

import json
import shutil

import pytest

from analysis.calibration.loading import load_tokenizer
from analysis.calibration.manifest import plan_run
from analysis.corpora.sequences import TokenSequences
from analysis.corpora.sources import seeded_order
from analysis.drain import drain
from analysis.errors import UserError
from analysis.files.shipped import DEMO_CHECKPOINT
from analysis.model.opening import load_model_index
from analysis.progress import Progress
from analysis.stats.store import stats_store
from pruning.measures.drawing import draw
from pruning.measures.sample_settings import BEYOND, SampleSettings
from pruning.plan.plan_file import plan_from_dict
from pruning.planning.make import make_plan
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.model import ExportRequest
from pruning.requests.plan import SpecRequest
from pruning.spec.spec import spec_of
from pruning.study import Study
from pruning.tasks.apart import open_checked
from pruning.tasks.calibration import calibrate_run, prepare_calibration
from pruning.tasks.evaluation import drawn_corpora
from pruning.tasks.export import export_run

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
GOOD = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "It is 4."}]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Forty rows, of which every tenth as drawn by seed 42 is bad."""
    root = tmp_path_factory.mktemp("skipped")
    shutil.copytree(DEMO_CHECKPOINT, root / "model")
    (root / "model" / "chat_template.jinja").write_text(TURNS)
    rows = [json.dumps({"messages": GOOD})] * 40
    for number in list(seeded_order(40, 42))[5::10]:
        rows[number] = json.dumps({"messages": [{"content": "nobody"}]})
    (root / "rows.jsonl").write_text("\n".join(rows))
    return root


def request_of(root, **fields):
    fields = {"tokens": 512, "seq_len": 32, "device": "cpu", "packing": "pad", **fields}
    return CalibrateRequest(
        model=str(root / "model"), corpus=str(root / "rows.jsonl"), stats_dir=root, **fields
    )


def prepared(request):
    notes = []
    task = prepare_calibration(request)
    try:
        while True:
            step = next(task)
            assert isinstance(step, Progress)
            notes += [step.note] if step.note else []
    except StopIteration as finished:
        return *finished.value, notes


def test_skipped_rows_are_in_the_manifest_and_said(root):
    model, sequences, settings, notes = prepared(request_of(root, skip_bad_rows=4))
    assert isinstance(sequences, TokenSequences)
    # Of the rows as drawn, 5, 15, 25 and 35 are bad.
    skipped = sequences.prepared["skipped_rows"]
    assert skipped == len([n for n in range(5, 40, 10) if n < sequences.num_documents + skipped])
    assert plan_run(model, sequences, settings).corpora[0].prepared["skipped_rows"] == skipped
    assert [note for note in notes if f"{skipped} bad row" in note] == notes


@pytest.mark.parametrize(("skips", "message"), [(0, "turn 1 .* no role"), (1, "1 bad row")])
def test_one_bad_row_too_many_is_named(root, skips, message):
    with pytest.raises(UserError, match=rf"^rows\.jsonl, line \d+: .*{message}"):
        prepared(request_of(root, tokens=4096, skip_bad_rows=skips))


def test_an_evaluation_skips_and_records_them(root):
    request = EvaluateRequest(
        model=str(root / "model"),
        corpora=(str(root / "rows.jsonl"),),
        samples=36,
        skip_bad_rows=4,
        stats_dir=root,
    )
    (drawn,) = drain(drawn_corpora(request, load_model_index(request.model), stats_store(root)))
    assert len(drawn.sequences.rows) == 36
    assert drawn.corpus["skipped_rows"] == 4


def test_documents_after_skipped_rows_are_those_that_were_not_read(root):
    model, sequences, settings, _ = prepared(request_of(root, tokens=400, skip_bad_rows=4))
    run = plan_run(model, sequences, settings)
    ref = run.corpora[0]
    read = ref.num_documents + ref.num_dropped_documents + ref.prepared["skipped_rows"]
    source = open_checked(str(root / "rows.jsonl"), stats_store(root), allowed=False, skips=4)
    drawn = draw(
        str(root / "rows.jsonl"),
        source,
        [run],
        SampleSettings(samples=4, seq_len=32),
        lambda: load_tokenizer(model),
    )
    assert (drawn.facts["drawn"], drawn.facts["skipped"]) == (BEYOND, read)
    assert len(drawn.sequences.rows) == 4


def test_a_plan_and_its_card_say_what_was_left_out(root):
    store = root / "stats"
    run = drain(
        calibrate_run(request_of(root, skip_bad_rows=4).model_copy(update={"stats_dir": store}))
    )
    counts = run.manifest.corpora[0].prepared
    request = SpecRequest(
        model=str(root / "model"),
        plan=spec_of(criterion="reap", sparsity="50%", corpora=(run.manifest.corpus,)),
        stats_dir=store,
    )
    model = load_model_index(request.model)
    plan = make_plan(
        Study.of(request, model, stats_store(store)).ranking(request.plan), request.plan
    )
    expected = {"conversations": counts["conversations"], "skipped_rows": counts["skipped_rows"]}
    assert plan.provenance.rows == {run.manifest.corpus: expected}
    assert plan_from_dict(plan.to_dict()).provenance == plan.provenance
    drain(
        export_run(
            ExportRequest(
                model=request.model, plan=plan.to_dict(), out=str(root / "out"), stats_dir=store
            )
        )
    )
    card = (root / "out" / "README.md").read_text()
    assert f'"skipped_rows": {counts["skipped_rows"]}' in card
