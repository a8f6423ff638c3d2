"""Export: prediction heads, plans of neurons, who reads what, and the proof of what was written."""

import json
import shutil

import pytest
import torch
from page_texts import command, metrics_of, opened, table_with, texts, unfolded, upload
from safetensors.torch import load_file, save_file

from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.stats.store import StatsStore
from app.jobs.model import JobState
from app.jobs.store import JobStore
from app.session.job_queue import job_store
from builders import tiny_checkpoint
from families.configs import BY_NAME
from families.tiny_models import tiny_model
from pruning.plan.plan import PruningPlan, model_ref
from pruning.plan.plan_file import plan_from_dict
from pruning.plan.sizes import format_bytes, weight_bytes
from pruning.plan.widths import WidthMode
from pruning.planning.make import make_plan
from pruning.requests.model import ExportRequest
from pruning.requests.plan import SpecRequest
from pruning.spec.spec import spec_of
from pruning.study import Study
from pruning.surgery.export import export_checkpoint
from pruning.surgery.padding import plan_padding
from pruning.surgery.width_sizes import width_options
from pruning.tasks.export import export_run


def add_head(path):
    """A prediction head made of the last layer, in a trunk of its own."""
    weights = path / "model.safetensors"
    tensors = load_file(weights)
    head = {
        name.replace("model.layers.3.", "mtp.layers.0."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith("model.layers.3.")
    }
    assert any(".experts." in name for name in head)
    save_file({**tensors, **head}, weights, metadata={"format": "pt"})


def narrow_head(path):
    """The head's experts in eight bits, whose norms are not measured."""
    weights = path / "model.safetensors"
    tensors = load_file(weights)
    narrow = {
        name: tensor.to(torch.float8_e4m3fn)
        for name, tensor in tensors.items()
        if name.startswith("mtp.") and ".experts." in name
    }
    save_file({**tensors, **narrow}, weights, metadata={"format": "pt"})


@pytest.fixture(scope="session")
def headed(tmp_path_factory):
    """Models `plain` and `headed`: layers 0, 2, 3 of 6 experts of 24 neurons, top-2.

    And `biased`: layers 0, 1 of 6 experts, whose router adds a bias before it selects.
    """
    root = tmp_path_factory.mktemp("headed")
    tiny_checkpoint(root / "plain", "qwen3_moe", shards=1)
    shutil.copytree(root / "plain", root / "headed")
    add_head(root / "headed")
    shutil.copytree(root / "headed", root / "narrow")
    narrow_head(root / "narrow")
    tiny_model(BY_NAME["minimax_m2"]).save_pretrained(root / "biased")
    tiny_model(BY_NAME["deepseek_v3"]).save_pretrained(root / "latent")
    return root


@pytest.fixture
def models_root(headed):
    return headed


def test_heads_stay_where_no_count_changes_and_are_else_left_out_or_pruned(open_page):
    test = open_page("export", "plain", criterion="random")
    assert not [
        control for control in test.segmented_control if "Prediction heads" in control.label
    ]
    assert "--mtp" not in command(test, "export")
    test.selectbox(key="model").set_value("headed").run()
    heads = test.segmented_control(key="mtp")
    assert "mtp" in heads.label
    # Their experts are counted with the others, so they cannot stay whole.
    assert heads.options == ["Leave out", "Prune their experts"]
    assert "--mtp drop" in command(test, "export")
    assert any("heads (MTP) are left out" in text for text in texts(test.markdown))
    (left_out,) = [card.value for card in test.metric if card.label == "On disk"]
    test.segmented_control(key="mtp").set_value("prune").run()
    assert "--mtp prune" in command(test, "export")
    # No run measured them, so their weights rank them; what would measure them is said.
    assert any("Ranked by AIMER" in text and "heads" in text for text in texts(test.caption))
    assert left_out not in [card.value for card in test.metric if card.label == "On disk"]
    test.select_slider(key="sparsity").set_value(0).run()
    assert test.segmented_control(key="mtp").options == ["Keep as they are", "Leave out"]
    assert "--mtp keep" in command(test, "export")
    # What an export would refuse is not offered.
    test.select_slider(key="sparsity").set_value(50).run()
    test.selectbox(key="model").set_value("narrow").run()
    assert test.segmented_control(key="mtp").options == ["Leave out"]
    assert "--mtp drop" in command(test, "export")


def neuron_plan(root):
    """Every expert of layer 2 loses its last eight neurons but for the first, which loses one."""
    model = load_model_index(str(root / "plain"))
    short = {str(expert): list(range(16)) for expert in range(1, 6)}
    return {
        "schema_version": 1,
        "model": {"name": "plain", "identity": model.identity},
        "granularity": "neuron",
        "kept_neurons": {"2": {"0": list(range(23)), **short}},
    }


def test_a_plan_of_neurons_offers_the_width_modes_that_the_library_has(open_page, headed):
    plan = neuron_plan(headed)
    options = width_options(load_model_index(str(headed / "plain")), plan_from_dict(plan))
    assert {option.mode for option in options} == set(WidthMode)
    test = upload(
        open_page("export", "plain", criterion="random"), "neurons.json", json.dumps(plan)
    )
    unfolded(test, "export.engines.part")
    for option in options:
        test.segmented_control(key="width_mode").set_value(str(option.mode)).run()
        assert texts(test.error) == []
        assert "--plan neurons.json " in command(test, "export")
        assert f"--width-mode {option.mode} " in f"{command(test, 'export')} "
        shown = table_with(opened(test, "width-modes"), "width mode").set_index("width mode")
        assert (shown.loc[str(option.mode), "read by"] == "every reader") == option.stock
        readers = table_with(test, "program").set_index("program")["status"]
        assert (readers["transformers"] == "tried") == option.stock


def test_a_plan_of_neurons_from_a_file_turns_the_plan_page_to_neurons(open_page, headed):
    test = upload(
        open_page("plan", "plain", criterion="random"),
        "neurons.json",
        json.dumps(neuron_plan(headed)),
    )
    assert test.segmented_control(key="granularity").value == "neuron"
    # Of the neurons of one layer of three, 41 of 144 go, of 3 * 144 in all.
    shown = {metric.label: metric.value for metric in test.metric}
    assert shown["Neurons kept"] == "391"
    assert any("**neurons.json**" in text for text in texts(test.markdown))
    assert table_with(test, "least")["stay"].tolist() == [144, 103, 144]
    # A control that is touched means what it says: the file is forgotten.
    test.segmented_control(key="neurons").set_value("random").run()
    assert texts(test.error) == []
    assert not any("**neurons.json**" in text for text in texts(test.markdown))


def test_layers_of_different_counts_are_padded_where_the_router_can_rule_experts_out(
    open_page, queued_jobs, headed
):
    model = load_model_index(str(headed / "biased"))
    plan = PruningPlan(model_ref(model), {0: (0, 1, 2, 5), 1: (3, 4)})
    test = open_page("export", "biased", criterion="random")
    assert "pad" not in [toggle.key for toggle in test.toggle]  # equal counts
    upload(test, "uneven.json", plan.to_json())
    unfolded(test, "export.engines.part")
    assert "--pad" not in command(test, "export")
    assert table_with(test, "program").set_index("program")["status"]["transformers"] == "fails"
    cost = f"2 experts of zeros, {format_bytes(plan_padding(model, plan).nbytes)}"
    assert any(cost in text for text in texts(test.caption))
    bare = weight_bytes(model, plan)
    assert metrics_of(test)["On disk"] == format_bytes(bare)
    test.toggle(key="pad").set_value(True).run()
    assert " --pad " in command(test, "export")
    padded = format_bytes(bare + plan_padding(model, plan).nbytes)
    assert metrics_of(test)["On disk"] == padded != format_bytes(bare)
    assert table_with(test, "program").set_index("program")["status"]["transformers"] == "tried"
    test.button(key="export.start").click().run()
    (job,) = queued_jobs()
    assert " --pad " in job.command
    request = ExportRequest(**job.request)
    with job_store().transaction() as jobs:
        jobs.update(job.id, state=JobState.RUNNING, started_at=1.0)
    job_store().finish(job.id, JobState.DONE, result=drain(export_run(request)))
    assert [layer.num_experts for layer in load_model_index(str(request.out)).layers] == [4, 4]
    test.run()
    assert any(f"It is padded with {cost}." in text for text in texts(test.markdown))
    # In stock code: no layer has a size of its own.
    assert any(".from_pretrained(name)" in text for text in texts(test.code))
    # The same export again, as after a kill that followed its rename: verified, not written.
    (name,) = (field for field in test.text_input if field.label == "Folder name")
    name.set_value(request.out.name).run()
    assert any("holds this export, finished" in text for text in texts(test.markdown))
    assert not test.button(key="export.start").disabled
    before = {path: path.stat().st_mtime_ns for path in request.out.iterdir()}
    again = drain(export_run(request))
    assert (again["skipped"], again["verify"]["level"]) == (True, "logits")
    assert {path: path.stat().st_mtime_ns for path in request.out.iterdir()} == before
    test.toggle(key="pad").set_value(False).run()
    assert any("taken; choose another name" in text for text in texts(test.markdown))


def test_where_padding_is_impossible_the_page_says_why(open_page, headed):
    model = load_model_index(str(headed / "plain"))
    plan = PruningPlan(model_ref(model), {0: (0, 1), 2: (0, 1, 2), 3: (0, 1, 2)})
    test = upload(open_page("export", "plain", criterion="random"), "uneven.json", plan.to_json())
    assert "pad" not in [toggle.key for toggle in test.toggle]
    assert any("no bias that rules an expert out" in text for text in texts(test.caption))


def test_the_proof_shows_every_check_of_the_newest_export_of_this_model(
    open_page, tmp_path, headed
):
    def table_of(test):
        return [table.value for table in test.dataframe if "holds" in table.value.columns]

    checks = [
        {"name": "hashes", "ok": True, "detail": "3 files"},
        {"name": "loads", "ok": True, "detail": "128 tokens"},
    ]
    result = {"out": "out", "verify": {"level": "load", "reason": "as asked for", "checks": checks}}
    finish_export(jobs_of(tmp_path), headed / "plain", result)
    test = open_page("export", "plain", criterion="random")
    (shown,) = table_of(test)
    assert shown["result"].tolist() == ["3 files", "128 tokens"]
    assert any("2 of 2 checks hold" in text for text in texts(test.markdown))
    assert table_of(open_page("export", "headed", criterion="random")) == []


def jobs_of(tmp_path):
    return JobStore(tmp_path / "state" / "jobs.sqlite")


def written_export(tmp_path, headed, name="plain"):
    """A small export of the plan that the page proposes, as the job table and the disk have it."""
    plan = plan_of(headed, name)
    out = tmp_path / "small 1"
    drain(export_checkpoint(load_model_index(str(headed / name)), plan, out))
    checks = [
        {"name": "hashes", "ok": True, "detail": "3 files"},
        {"name": "logits", "ok": True, "detail": "equal"},
    ]
    verify = {"level": "logits", "reason": "as asked for", "checks": checks}
    result = {"out": str(out), "plan_digest": plan.digest, "verify": verify}
    finish_export(jobs_of(tmp_path), headed / name, result)
    return out


def plan_of(headed, name="plain"):
    """The plan that the page shows at first."""
    spec = spec_of(criterion="random", sparsity="50%")
    request = SpecRequest(model=str(headed / name), plan=spec)
    model = load_model_index(request.model)
    return make_plan(Study.of(request, model, StatsStore(headed)).ranking(request.plan), spec)


def test_the_option_without_which_an_engine_is_wrong_is_shown(open_page, tmp_path, headed):
    out = written_export(tmp_path, headed, "latent")
    test = open_page("export", "latent", criterion="random")
    assert texts(test.error) == []
    option = """--compilation-config '{"custom_ops": ["none"]}'"""
    served = test.segmented_control(key="program").set_value("vLLM").run()
    assert f"--model '{out}' --port 8000 {option}" in texts(served.code)[1]
    assert any(f"vLLM (on a CPU only with {option})" in text for text in texts(test.markdown))


def test_success_leads_with_place_code_servers_and_all_checks(open_page, tmp_path, headed):
    out = written_export(tmp_path, headed)
    test = open_page("export", "plain", criterion="random")
    assert texts(test.error) == []
    assert not any(":red[" in text for text in texts(test.markdown))
    code = texts(test.code)
    assert code[0] == str(out)
    assert f'name = "{out}"' in code[1]
    assert "AutoModelForCausalLM.from_pretrained(name)" in code[1]
    # A program's commands, in order, then what asks it.
    test.segmented_control(key="program").set_value("llama.cpp").run()
    commands, request = texts(test.code)[1:3]
    assert f"convert_hf_to_gguf.py '{out}' --outfile model.gguf --outtype f32" in commands
    assert commands.endswith("llama-server --model model-Q8_0.gguf --port 8080")
    assert request.startswith("curl localhost:8080/v1/completions ")
    assert [text for text in texts(test.text) if text.startswith("logits: equal")]
    # What comes next.
    assert any(button.proto.label == "Decision page" for button in test.get("download_button"))
    later = test.button(key="export.benchmark").click().run()
    assert not later.exception
    assert later.session_state["results"] == "benchmarks"
    test = open_page("export", "plain", criterion="random")
    assert table_with(test, "holds")["check"].tolist() == ["logits", "hashes"]
    (form,) = (expander for expander in test.expander if "again" in expander.label)
    assert [button.key for button in form.button] == ["export.start"]
    assert not form.button[0].disabled
    # Another plan is not the one that was written, and neither is one whose files are gone.
    test.select_slider(key="sparsity").set_value(0).run()
    assert not any("again" in expander.label for expander in test.expander)
    shutil.rmtree(out)
    test.select_slider(key="sparsity").set_value(50).run()
    assert not any("again" in expander.label for expander in test.expander)
    # A failed export stays red.
    finish_export(jobs_of(tmp_path), headed / "plain", {}, JobState.FAILED)
    (message,) = texts(test.run().error)
    assert "small" in message
    assert "failed" in message


def test_the_name_that_is_offered_is_free(open_page, export_root, headed):
    def offered():
        test = open_page("export", "plain", criterion="random")
        (field,) = (field for field in test.text_input if field.label == "Folder name")
        assert not any(":red[" in text for text in texts(test.markdown))
        return field.value

    first = offered()
    (export_root / first).mkdir(parents=True)
    assert offered() == f"{first}-2"


def finish_export(store, model, result, state=JobState.DONE):
    """A row of the job table as a finished export leaves it."""
    request = {"model": str(model), "plan": {}, "out": "out"}
    job = store.submit("export", request, "small", "moeprune export", "local")
    with store.transaction() as jobs:
        jobs.update(job.id, state=JobState.RUNNING, started_at=1.0)
    error = "" if state is JobState.DONE else "the disk is full"
    store.finish(job.id, state, result=result, error=error)
