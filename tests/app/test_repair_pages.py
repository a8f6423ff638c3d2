"""Repair on the pages: the button, what is said of known repairs, and the choice of one."""

import hashlib
import shutil
from dataclasses import replace

import pytest
from page_texts import (
    ALL_CORPORA,
    command_lines,
    loaded_on,
    parsed,
    press,
    recipe_on,
    texts,
    upload,
)

from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.stats.manifest import CorpusRef
from builders import ROWS
from builders.measured import altered
from pruning.actions.sweep import ACTION
from pruning.measurements.block import ORIGINAL
from pruning.plan.plan_file import plan_from_dict, plan_from_json
from pruning.records.evaluation import EvaluationStore
from pruning.records.repair import LayerFit, RepairRecord, RepairStore
from pruning.requests.evaluation import SweepRequest

PLAN = {"model": "once", "sparsity": "50%"}
CHOICE = f"repaired on {ROWS}, 4,096 tokens"


@pytest.fixture
def stats_dir(folders, tmp_path):
    return shutil.copytree(folders[1], tmp_path / "stats")


@pytest.fixture
def plan(open_page):
    return loaded_on(open_page("plan", **PLAN)).shown.plan


@pytest.fixture
def record(plan, models_root, stats_dir):
    """A repair of the plan of PLAN, of which one layer of three gained nothing."""
    model = load_model_index(models_root / "once")
    corpus = CorpusRef(ROWS, "c" * 64, 1, 8, 4096, 0, 0, 4096)
    settings = {"dtype": "float32", "seed": 42, "seq_len": 512}
    new = RepairRecord.new(model, plan, (corpus,), settings, "by hand")
    store = RepairStore([stats_dir])
    folder = store.unfinished(new)
    folder.mkdir(parents=True)
    held_out = {"0.1": 0.5}
    layers = [LayerFit(layer=layer, target="layer", held_out=held_out) for layer in plan.kept]
    fits = [layers[0], *(layer.model_copy(update={"damping": 0.1}) for layer in layers[1:])]
    for layer in list(plan.kept)[1:]:
        (folder / f"layer-{layer:05d}.safetensors").write_bytes(b"new")
    sha256 = hashlib.sha256(b"new").hexdigest()
    done = new.with_layers(fits, lambda _: sha256, {"created_at": "2026-01-01T00:00:00"})
    store.finish(done, folder)
    return done


def bar(test):
    """The line of the plan."""
    return next(text for text in texts(test.markdown) if ":material/arrow_right_alt:" in text)


def buttons(test):
    return [button.label for button in test.button]


@pytest.mark.parametrize("page", ["plan", "evaluate"])
def test_the_button_queues_the_repair_of_the_plan(open_page, queued_jobs, plan, page):
    test = open_page(page, **PLAN)
    line = next(line for line in command_lines(test) if line.startswith("moeprune repair"))
    assert str(parsed(line)["plan"]) == "plan.json"
    test.selectbox(key="repair.tokens").set_value(8192).run()
    press(test, "Repair this plan")
    (job,) = queued_jobs()
    assert (job.kind, job.request["tokens"]) == ("repair", 8192)
    assert plan_from_dict(job.request["plan"]).digest == plan.digest
    # A file of the models folder, which a name alone would not lead to.
    assert job.request["corpora"][0].startswith("/")
    assert "--tokens 8192" in job.command


def test_a_plan_that_removes_nothing_has_no_button(open_page):
    assert "Repair this plan" in buttons(open_page("plan", **PLAN))
    assert "Repair this plan" not in buttons(open_page("plan", model="once", sparsity="0%"))


def test_a_known_repair_is_told_and_its_choice_is_the_plan_of_every_page(
    open_page, go_to, queued_jobs, plan, record
):
    test = open_page("plan", **PLAN)
    (line,) = (text for text in texts(test.markdown) if "layers fitted on" in text)
    assert "2 of 3 layers fitted on 4,096 tokens of rows.jsonl" in line
    assert " + repair" not in bar(test)
    test.selectbox(key="repair").set_value(CHOICE).run()
    assert "Repair this plan" not in buttons(test)
    for page in ("plan", "evaluate", "export", "start", "evaluate"):
        go_to(test, page)
        assert " + repair on 4,096 tokens** " in bar(test), page
    # A link that another person opens.
    repaired = replace(plan, repair=record.reference)
    shown = loaded_on(open_page("start", **PLAN, repair=CHOICE)).shown
    assert (shown.plan.digest, shown.file_name) == (repaired.digest, "repaired.json")
    refit, measure = command_lines(test)[1:3]
    assert refit.startswith("moeprune repair ")
    assert (str(parsed(refit)["plan"]), parsed(refit)["tokens"]) == ("plan.json", 4096)
    assert str(parsed(measure)["plans"][0]) == "repaired.json"
    press(test)
    (job,) = queued_jobs()
    assert plan_from_dict(job.request["plans"][0]) == repaired
    # Another plan is as pruned again.
    test.select_slider(key="sparsity").set_value(30).run()
    assert "repair" not in bar(test)
    assert "repair" not in [box.key for box in test.selectbox]


def test_a_file_with_a_repair_is_shown_as_it_is(open_page, stats_dir, plan, record):
    repaired = replace(plan, repair=record.reference)
    test = upload(open_page("plan", **PLAN), "other.json", repaired.to_json())
    assert "**other.json (repaired on 4,096 tokens)**" in bar(test)
    assert "repair" not in [box.key for box in test.selectbox]
    (line,) = (text for text in texts(test.markdown) if ":material/healing:" in text)
    assert line.endswith("; used here.")
    for path in stats_dir.rglob("repairs/*.json"):
        path.unlink()
    test.run()
    (line,) = (text for text in texts(test.markdown) if ":material/healing:" in text)
    assert "is not in the statistics folder" in line


@pytest.mark.parametrize("page", ["start", "plan", "export"])
def test_a_repair_whose_weights_were_changed_is_refused(open_page, stats_dir, plan, record, page):
    assert open_page(page, **PLAN).selectbox(key="repair").options == ["as pruned", CHOICE]
    file = RepairStore([stats_dir]).path(record).with_suffix("") / "layer-00001.safetensors"
    file.write_bytes(b"another")
    test = open_page(page, **PLAN, repair=CHOICE)
    wrong = f"The repair {record.record_id} is not what was made: {file.name} was changed"
    # The other warning is of the link, which names it.
    assert sum(wrong in text for text in texts(test.warning)) == 1
    assert "repair" not in [box.key for box in test.selectbox]
    assert " + repair" not in bar(test)
    # A file that names it is no plan.
    repaired = replace(plan, repair=record.reference)
    test = upload(open_page("plan", **PLAN), "other.json", repaired.to_json())
    assert [wrong in text for text in texts(test.error)] == [True]


def test_the_loss_is_that_of_the_repaired_plan(open_page, models_root, stats_dir, plan, record):
    request = SweepRequest(
        model=str(models_root / "once"),
        corpora=(str(models_root / "rows.jsonl"),),
        criteria=("reap", "random"),
        sparsities=("50%",),
        samples=3,
        seq_len=9,
        measures="nll",
        stats_dir=stats_dir,
    )
    records = drain(ACTION.run(request))
    (plain,) = (record for record in records if record.plan_digest == plan.digest)
    repaired = replace(plan, repair=record.reference)
    full = plain.numbers[ORIGINAL].sums["nll"]
    less = replace(full, sums=full.sums + 0.125 * full.counts)
    facts = {"repair": record.record_id, "repaired_on": (ROWS,), "repair_tokens": 4096}
    fitted = altered(
        plain,
        less,
        record_id=f"{plain.record_id}-repaired",
        plan_digest=repaired.digest,
        plan=plain.plan.model_copy(update=facts),
    )
    EvaluationStore([stats_dir]).save(fitted)
    plain_bar = bar(open_page("evaluate", **PLAN))
    assert "+0.12" not in plain_bar
    assert "Random -" in plain_bar
    test = open_page("evaluate", **PLAN, repair=CHOICE)
    assert "+ repair on 4,096 tokens** " in bar(test)
    assert "loss +0.12" in bar(test)
    assert "Random without repair -" in bar(test)
    assert "your plan (repaired)" in test.table[0].value
    candidates = test.dataframe[0].value.set_index("candidate")
    assert candidates["repaired_on"].to_dict() == {
        f"yours: REAP, on {ROWS} + repair on 4,096 tokens": ROWS,
        f"REAP, on {ROWS}": "",
        "Random": "",
    }


@pytest.mark.slow  # repairs for real, as the commands of the guide do
def test_the_recipe_of_a_repaired_plan_runs_to_its_repair(open_page, run, tmp_path):
    ean = {"criterion": "ean", "corpora": ALL_CORPORA, "sparsity": "50%"}
    choice = open_page("plan", **ean).selectbox(key="repair").options[1]
    test = open_page("plan", **ean, repair=choice)
    plan = loaded_on(test).shown.plan
    (tmp_path / "recipe.yaml").write_text(recipe_on(test))
    run("moeprune prune recipe.yaml")  # the repair ships with the demo
    made = plan_from_json((tmp_path / "recipe.repaired.json").read_text())
    assert made.repair == plan.repair is not None
    assert made.digest == plan.digest
