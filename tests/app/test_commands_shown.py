"""The command lines on the pages are commands: they run, and give what the page shows."""

import json
import shutil

import pytest

CHARTS = [
    {"b": "1", "alpha": "0", "beta": "2", "corpus": "demo-prose", "sparsity": "25%"},
    {"b": "0", "alpha": "2", "beta": "1", "gate": "Renormalized"},
    {"criterion": "MoNE", "corpus": "demo-math"},
    {"model": "once", "sparsity": "65%"},
    {"model": "weighed", "criterion": "Magnitude", "baseline": "AIMER", "sparsity": "35%"},
]


def kept_on_page(test):
    (table,) = (frame.value for frame in test.dataframe if "kept" in frame.value)
    return {
        str(layer): [int(expert) for expert in kept.split(", ")]
        for layer, kept in zip(table["layer"], table["kept"], strict=True)
    }


@pytest.mark.parametrize("address", CHARTS, ids=lambda address: "-".join(address.values()))
def test_plan_command_keeps_what_the_page_keeps(open_page, run, tmp_path, address):
    on_explore = open_page("explore", **address).code[0].value
    test = open_page("export", **address)
    plan_line, export_line = test.code[0].value.splitlines()
    assert plan_line == on_explore
    run(plan_line)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["kept"] == kept_on_page(test)
    run(export_line)
    (written,) = (tmp_path / "exports").iterdir()
    manifest = json.loads((written / "moeprune_manifest.json").read_text())
    assert manifest["plan"]["kept"] == plan["kept"]


def test_downloaded_plan_is_the_one_of_the_command(open_page, run, tmp_path, monkeypatch):
    """The button offers the very bytes, but for what says how they came about."""
    offered = []
    import app.parts.export.exports as parts

    monkeypatch.setattr(
        parts.st, "download_button", lambda _label, data, **_options: offered.append(data)
    )
    test = open_page("export", corpus="demo-math")
    run(test.code[0].value.splitlines()[0])
    assert (tmp_path / "plan.json").read_text() in offered


@pytest.mark.parametrize("model", [None, "bare", "once"])
def test_commands_of_the_start_page_are_accepted(open_page, run, model):
    listing, calibrate, weights = [code.value for code in open_page("start", model).code][:3]
    assert "demo-weights" in run(listing)
    if model is None:
        # Without the work: only what it would take. The small models have no tokenizer.
        assert "Nothing was run." in run(f"{calibrate} --dry-run")
    run(weights)


def test_the_command_of_a_calibration_says_how_documents_are_fed(open_page, run, queued_jobs):
    test = open_page("start")
    presets = [option for option in test.selectbox(key="start.corpus").options if "hub" in option]
    assert presets[0] == "c4 (from the hub)"
    test.selectbox(key="start.corpus").select("demo-math")
    test.selectbox(key="start.packing").select("pack")
    test.selectbox(key="start.count").select("response")
    next(button for button in test.button if button.label == "Calibrate").click().run()
    (job,) = queued_jobs()
    assert "--packing pack --count response" in job.command
    said = dict(line.split(None, 1) for line in run(f"{job.command} --dry-run").splitlines()[2:])
    assert (said["corpus"], said["packing"], said["count"]) == ("demo-math", "pack", "response")
    assert int(said["counted"].replace(",", "")) < int(said["tokens"].replace(",", ""))


@pytest.fixture
def stats_dir(folders, tmp_path):
    """A copy: some of the commands write."""
    return shutil.copytree(folders[1], tmp_path / "stats")
