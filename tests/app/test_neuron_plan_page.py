"""Plan and Export of neurons: the switch, every scope, the address, and what is missing."""

import json
import shlex
from pathlib import Path

import pandas as pd
import pytest
from page_texts import (
    command,
    decoded,
    loaded_on,
    metrics_of,
    open_at,
    opened,
    recipe_on,
    refusal_of_link,
    report_on,
    table_with,
    texts,
)

from analysis.drain import drain
from analysis.model.opening import load_model_index
from analysis.stats.store import stats_store
from app.session.plan_data import shown_neurons
from app.widgets.neuron_sizes import saved_sentence
from pruning import load_pruned
from pruning.plan.kept import count_neurons
from pruning.plan.plan_file import plan_from_json
from pruning.requests.machine import Machine
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.requests.recipe_steps import spec_request
from pruning.study import Study

NEURONS = {"granularity": "neuron", "sparsity": "40%"}
OVER_ALL = NEURONS | {"neuron_scope": "global"}
ALL = 6 * 32 * 64  # of the demo
HEAD = 2048 * 128  # numbers of the head that an export of the demo copies from its embedding


@pytest.fixture(scope="module")
def demo():
    return load_model_index("demo")


ASKED = [
    {"neuron_scope": "global"},
    {"neuron_scope": "layer", "criterion": "camera-p", "corpora": "demo-math"},
    {"neuron_scope": "expert", "criterion": "neuron-norms", "multiple_of": "8"},
    {"schedule": "measured", "corpora": "demo-code", "sparsity": "50%"},
    {"params_share": "20%", "protect": "1", "pin": ["0:3", "2:1-2"], "keep_super": "True"},
    {"shrink": "25%", "neuron_scope": "expert", "width_mode": "per-layer"},
    {"criterion": "random", "drop": "4:0,9", "width_mode": "per-layer", "width_multiple_of": "16"},
    {"corpora": ["demo-code:100", "demo-math:50"]},
]


@pytest.mark.parametrize(
    "address", [*ASKED[:4], *(pytest.param(asked, marks=pytest.mark.slow) for asked in ASKED[4:])]
)
def test_page_command_and_recipe_make_one_plan(open_page, address, tmp_path, run, demo):
    test = open_page("plan", granularity="neuron", **address)
    assert texts(test.error) == []
    line = command(test, "plan")
    run(line)
    by_command = plan_from_json((tmp_path / "plan.json").read_text())
    assert by_command.digest == digest_on(test)
    words = shlex.split(line)
    stats = Path(words[words.index("--stats-dir") + 1])
    recipe = recipe_from_yaml(recipe_on(test), name="recipe.yaml")
    request = spec_request(recipe, Machine(stats_dir=stats))
    made, _ = drain(Study.of(request, demo, stats_store(stats)).make(request.plan))
    assert made.digest == by_command.digest
    # What the table says is what the plan holds.
    kept = {**everyone(demo), **by_command.kept}
    stay, of = count_neurons(by_command.kept_neurons, kept, demo)
    assert (table_with(test, "least")["stay"].sum(), of) == (stay, ALL)
    assert metrics_of(test)["Neurons kept"] == f"{stay:,}"
    # The recipe sets the controls that made it, on a page that is opened anew.
    other = open_page("plan")
    other.file_uploader[0].upload("recipe.yaml", recipe_on(test).encode(), "application/yaml").run()
    assert texts(other.error) == []
    assert (recipe_on(other), command(other, "plan")) == (recipe_on(test), line)


def everyone(model):
    return {layer.index: tuple(range(layer.num_experts)) for layer in model.layers}


def digest_on(test):
    """Digest of the plan that the page's own button would save."""
    return shown_neurons(loaded_on(test)).plan.digest


def test_the_recipe_of_the_page_runs_to_its_plan(open_page, tmp_path, run):
    test = open_page("plan", criterion="neuron-norms", neuron_scope="layer", **NEURONS)
    (tmp_path / "recipe.yaml").write_text(recipe_on(test))
    run("moeprune prune recipe.yaml")
    made = plan_from_json((tmp_path / "recipe.plan.json").read_text())
    assert made.digest == digest_on(test)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("budget: {sparsity: 33%}", "sparsity: 33%"),
        ("budget: {target_size: 1}", "target_size: 1"),
        ("limits: {floor: 4}\nbudget: {sparsity: 40%}", "floor"),
    ],
)
def test_a_recipe_that_the_page_has_no_controls_for_is_refused(open_page, change, says):
    test = open_page("plan")
    text = f"model: demo\ncriterion: neuron-norms\ngranularity: neuron\n{change}\n"
    test.file_uploader[0].upload("recipe.yaml", text.encode(), "application/yaml").run()
    (message,) = texts(test.error)
    assert f"This page has no control for {says}" in message


def test_the_switch_leads_to_neurons_and_back(open_page):
    test = open_page("plan")
    assert "Experts kept" in metrics_of(test)
    test.segmented_control(key="granularity").set_value("neuron").run()
    assert not test.exception
    # Half of the neurons of each expert, by HEAPr.
    assert metrics_of(test)["Neurons kept"] == f"{ALL // 2:,}"
    assert "--criterion heapr --granularity neuron --calibrated-on demo-code" in command(
        test, "plan"
    )
    assert "--granularity neuron" in command(test, "plan")
    assert "--neuron-scope" not in command(test, "plan")  # whose default is each expert too
    test.segmented_control(key="granularity").set_value("expert").run()
    assert not test.exception
    assert "Experts kept" in metrics_of(test)


def figure_of(test, name):
    (chart,) = (chart for chart in test.get("plotly_chart") if f"chart.{name}" in chart.proto.id)
    return json.loads(chart.proto.spec)


# What is refused of experts too, tests/app/test_choices.py has.
@pytest.mark.parametrize(
    ("address", "says"),
    [
        ({"criterion": "reap"}, "REAP"),
        ({"width_multiple_of": "7"}, "no control for width_multiple_of: 7"),
        ({"multiple_of": "9" * 5000}, "longer than 2,000 characters"),
        ({"pin": "<b>x</b>"}, "names no experts; write LAYER:EXPERTS"),
        ({"criterion": "camera-p", "neuron_scope": "global"}, "give neuron_scope layer or expert"),
        ({"set": "0=4"}, "set is for plans of whole experts"),
        ({"kept_neurons": "/etc/passwd"}, "kept_neurons says all that stays"),
    ],
    ids=str,
)
def test_what_no_control_can_say_is_named_and_the_rest_of_an_address_is_shown(
    open_page, address, says
):
    test = open_page("plan", refused=says, **{**NEURONS, **address})
    # The plan of the rest, with what was left out above it until a control is used.
    assert texts(test.error) == []
    assert metrics_of(test)["Neurons kept"] == "7,488"
    criterion = "camera-p" if address.get("criterion") == "camera-p" else "heapr"
    assert loaded_on(test).shown.plan.provenance.criterion == criterion
    test.segmented_control(key="neurons").set_value("neuron-norms").run()
    assert refusal_of_link(test) == ""


def test_more_than_the_neurons_hold_names_the_most(open_page):
    test = open_page("plan", granularity="neuron", params_share="40%")
    test.select_slider(key="sparsity").set_value(90).run()
    (message,) = texts(test.error)
    assert "the largest share that works is 87.35%" in message
    test.select_slider(key="sparsity").set_value(85).run()
    assert texts(test.error) == []
    # 85% of 5,401,728 parameters, in neurons of 3 * 128, rounded up.
    assert metrics_of(test)["Neurons kept"] == f"{ALL - -(-85 * 5401728 // 38400):,}"


@pytest.mark.parametrize("model", ["bare", "once"])
def test_missing_statistics_are_named_with_the_job_that_collects_them(
    open_page, queued_jobs, model
):
    test = open_page("plan", model, **NEURONS)
    no_plan, message = texts(test.info)
    assert "HEAPr needs statistics of neurons" in no_plan
    assert "needs statistics per neuron" in message
    assert ("on rows.jsonl" in message) == (model == "once")
    (line,) = [text for text in texts(test.code) if text.startswith("moeprune calibrate ")]
    assert "--group gradient" in line
    if model == "once":  # the run that is there is made again, with the neurons
        assert "rows.jsonl" in line
        assert "--seq-len 16" in line
    test.button(key="neurons.collect").click().run()
    assert texts(test.error) == []
    (job,) = queued_jobs()
    assert (job.kind, job.request["groups"]) == ("calibrate", ["gradient"])
    assert job.command == line
    # The weights alone rank without any.
    test.segmented_control(key="neurons").set_value("neuron-norms").run()
    assert texts(test.info) == []
    assert metrics_of(test)["Neurons kept"]


def test_neurons_save_by_default_on_disk_loaded_and_in_flops(open_page):
    test = open_page("export", granularity="neuron")
    # Half of each expert, 32 neurons of 384 numbers of two bytes, in every reader's layout.
    mib = 2 * (5401728 + HEAD - 6 * 32 * 32 * 384) / 2**20
    for label in ("On disk, uniform", "Loaded, uniform"):
        (card,) = (card for card in test.metric if card.label == label)
        assert card.value == f"{mib:.1f} MiB"
        assert card.delta.startswith("-4.0 MiB (39%)")
    (card,) = (card for card in test.metric if card.label == "Expert FLOPs / token")
    assert card.delta.startswith("-50.0%")
    shown = table_with(opened(test, "width-modes"), "width mode").set_index("width mode")
    assert shown.loc["uniform", "read by"] == "every reader"


def test_a_plan_over_all_layers_saves_nothing_in_uniform_and_offers_what_saves(open_page):
    def labels(test):
        keys = ("neurons.save.expert", "neurons.save.ragged")
        return [button.label for button in test.button if button.key in keys]

    test = open_page("plan", **OVER_ALL)
    shown = table_with(opened(test, "width-modes"), "width mode").set_index("width mode")
    assert shown.loc["uniform", "saved on disk"] == pytest.approx(-HEAD / 5401728)
    # 4,915 of 12,288 neurons of 3 * 128 numbers, of 5,401,728.
    assert shown.loc["ragged", "saved on disk"] == pytest.approx((4915 * 384 - HEAD) / 5401728)
    assert shown.loc["ragged", "saved loaded"] == pytest.approx(-HEAD / 5401728)
    larger = "larger than the original by 512 KiB"  # the head, of 2 * 2048 * 128 bytes
    (line,) = (text for text in texts(test.markdown) if "padded to the widest" in text)
    assert f"uniform and per-layer are {larger}: experts" in line
    assert f"ragged saves 30% on disk; in memory the model is {larger}." in line
    assert labels(test) == [
        "Narrow all experts equally: neurons compete within each expert",
        "Choose ragged: saves 30% on disk",
    ]
    test.button(key="neurons.save.ragged").click().run()
    # A neuron has 384 weights of two bytes; 4,915 of them go.
    mib = 2 * (5401728 + HEAD - 4915 * 384) / 2**20
    assert metrics_of(test)["On disk, ragged"] == f"{mib:.1f} MiB"
    assert labels(test) == []
    test.segmented_control(key="width_mode").set_value("uniform").run()
    test.button(key="neurons.save.expert").click().run()
    # 25 of 64 neurons go; 39 stay, of which a multiple of 8 is loaded.
    mib = 2 * (5401728 + HEAD - 6 * 32 * 24 * 384) / 2**20
    assert metrics_of(test)["Loaded, uniform"] == f"{mib:.1f} MiB"
    assert labels(test) == []
    shown = table_with(opened(test, "width-modes"), "width mode").set_index("width mode")
    assert shown.loc["uniform", "width loaded"] == "40"
    saved = (6 * 32 * 24 * 384 - HEAD) / 5401728
    assert shown.loc["uniform", "saved on disk"] == pytest.approx(saved)


def test_flops_and_shares_of_every_scope_are_drawn(open_page, demo_moments):
    test = open_page("plan", **OVER_ALL)
    lines = {trace["name"]: trace for trace in figure_of(test, "neuron-layers")["data"]}
    assert list(lines) == ["Global", "Per layer", "Per expert", "Measured"]
    removed = table_with(test, "least")["share"].tolist()
    assert decoded(lines["Global"]["y"]) == pytest.approx(removed)
    assert decoded(lines["Per layer"]["y"]) == pytest.approx([819 / 2048] * 6)
    # The demo ships the sensitivity of this order; the line is that of the plan which reads it.
    test.segmented_control(key="neuron_scope").set_value("Measured").run()
    removed = table_with(test, "least")["share"].tolist()
    assert decoded(lines["Measured"]["y"]) == pytest.approx(removed)
    assert len(set(removed)) > 1
    test.segmented_control(key="neuron_scope").set_value("Global").run()
    saved = {trace["name"]: trace for trace in figure_of(test, "neuron-flops")["data"]}
    # Experts are as often chosen as they are wide, or not: even widths save what they remove.
    every = saved["Per expert"]
    assert decoded(every["y"]) == pytest.approx(decoded(every["x"]))
    # The card counts the zeros, as the bytes beside it do; without them a token costs what its
    # experts keep: two for each of the 384 weights of a neuron.
    table = demo_moments["demo-code"]
    num_tokens = table.groupby("layer")["num_tokens"].sum().iloc[0] / 4  # top-4
    neurons = loaded_on(test).shown.plan.kept_neurons
    flops = sum(
        row.num_tokens / num_tokens * len(neurons.get(row.layer, {}).get(row.expert, range(64)))
        for row in table.itertuples()
    ) * (2 * 384)
    (card,) = (card for card in test.metric if card.label == "Expert FLOPs / token")
    assert card.delta == "as before"
    assert f"the kept neurons need {flops / 1000:.0f} k" in card.help


def test_the_report_and_the_figures_are_those_of_neurons(open_page):
    test = open_page("plan", **OVER_ALL)
    (report,) = report_on(test)
    views = ("layers", "flops", "sensitivity", "sensitivity-map", "frontier")
    assert report.endswith(" ".join(f"--view neuron-{name}" for name in views) + " -o report.html")
    test.text_input(key="protect").set_value("1").run()
    (report,) = report_on(test)
    assert " --protect 1 " in report


def test_the_export_command_of_the_page_writes_a_model_that_loads(open_page, tmp_path, run):
    widths = {"neuron_scope": "layer", "width_mode": "per-layer", "width_multiple_of": "4"}
    test = open_page("plan", criterion="camera-p", sparsity="60%", granularity="neuron", **widths)
    plan_line = command(test, "plan")
    modes = table_with(opened(test, "width-modes"), "width mode").set_index("width mode")
    loaded = modes.loc["per-layer", "width loaded"]
    open_at(test, "export")
    assert texts(test.error) == []
    assert command(test, "plan") == plan_line
    (line,) = (
        line
        for code in texts(test.code)
        for line in code.splitlines()
        if line.startswith("moeprune export ")
    )
    assert "--width-mode per-layer --width-multiple-of 4" in line
    run(plan_line)
    words = shlex.split(line)
    (out,) = (word for word in words if word.endswith("-neurons-layer"))
    words[words.index(out)] = "out"
    words.remove("--verify")  # what it proves, tests of exports do on smaller models
    run(shlex.join(words))
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    found = written["per_layer_expert_width"]
    assert f"{min(found)} to {max(found)}" == loaded
    shapes = [
        layer.mlp.experts.down_proj.shape for layer in load_pruned(tmp_path / "out").model.layers
    ]
    assert [shape[-1] for shape in shapes] == found
    assert len(set(found)) > 1


def test_camera_p_has_no_budget_over_all_layers_and_says_why(open_page):
    test = open_page("plan", **OVER_ALL)
    test.segmented_control(key="neurons").set_value("camera-p").run()
    assert test.segmented_control(key="neuron_scope").options == [
        "Per layer",
        "Per expert",
        "Measured",
    ]
    assert any("compares neurons of one layer only" in text for text in texts(test.caption))
    assert "--neuron-scope" not in command(test, "plan")
    series = {trace["name"] for trace in figure_of(test, "neuron-layers")["data"]}
    assert series == {"Per layer", "Per expert"}


def test_weights_that_take_long_are_left_to_the_command(open_page, monkeypatch):
    monkeypatch.setattr("app.session.plan_data.MOST_BYTES_READ", 1 << 20)
    test = open_page("plan", criterion="neuron-norms", **NEURONS)
    (message,) = texts(test.error)
    assert "reads 9.0 MiB of weights" in message
    assert "moeprune plan demo --criterion neuron-norms" in message
    assert "--granularity neuron" in message


def test_sentences_on_what_is_saved():
    def table(*disks):
        rows = [("plan", "", disks[0], disks[0])]
        rows += [
            (mode, "", disk, 90)
            for mode, disk in zip(("uniform", "ragged"), disks[1:], strict=True)
        ]
        return pd.DataFrame(rows, columns=["mode", "refused", "disk", "loaded"])

    assert saved_sentence(table(100, 100, 100), 100) == (
        "Even without padding the export is as large as the original."
    )
    assert saved_sentence(table(50, 1124, 100), 100).startswith(
        "uniform is larger than the original by 1 KiB, ragged is as large as the original: experts"
    )
    assert saved_sentence(table(50, 75, 50), 100) == (
        "uniform saves 25% on disk and 10% in memory. ragged saves 50% on disk and 10% in memory."
    )
    assert saved_sentence(table(50, 61, 61), 100) == (
        "uniform and ragged save 39% on disk and 10% in memory."
    )
    assert saved_sentence(table(50, 100, 100), 100).endswith("which narrows all equally.")
