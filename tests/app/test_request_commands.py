"""Command lines of requests and pages are commands: they are read, run, and give what is shown."""

import json
import shutil

import pytest
from page_texts import parsed, unfolded

from analysis.files.shipped import SHIPPED_STATS
from app.jobs.kinds import KINDS
from pruning.requests.plan import SpecRequest
from pruning.spec.base import default_of, flat_fields, flat_values, validated

PLAN = {"kept": {"0": [0]}}
(RUN,) = (path.name for path in SHIPPED_STATS.glob("demo-demo-math-*"))
SEARCHING = (
    "model: demo\ncorpora: [demo-code]\ncriterion: reap\nbudget: {sparsity: 50%}\n"
    "search: {corpus: demo-math}\n"
)
MEASURED = {"model": "demo", "corpora": ("demo-math",)}
# The least that each kind asks for, below what `MORE` adds; tests/cli/test_actions.py has all.
LEAST = {
    "calibrate": {"model": "demo", "corpus": "demo-math"},
    "weights": {"model": "demo"},
    "export": {"model": "demo", "plan": PLAN, "out": "smaller"},
    "repair": {"model": "demo", "plan": PLAN},
    "evaluate": MEASURED,
    "sweep": {**MEASURED, "criteria": ("reap",), "sparsities": ("25%",)},
    "bins": {**MEASURED, "criterion": "reap"},
    "benchmark": {"model": "demo"},
    "variance": MEASURED,
    "ask": {"model": "demo", "prompt": "- why?"},
    "fit": {"model": "demo", "target_size": "3.5MiB"},
    "traffic": {"plan": PLAN, "traces": ("monday.jsonl",)},
    "sensitivity": {**MEASURED, "criterion": "reap"},
    "subsets": {**MEASURED, "criteria": ("reap",), "sparsity": "25%"},
    "search": {"recipe": SEARCHING, "out": "found"},
    "plan": {"model": "demo", "criterion": "heapr", "sparsity": "25%"},
}
# Beside the least, values of which none is a default: of every form that an option has.
MORE = [
    ("calibrate", {"tokens": 512, "packing": "pack", "count": "response", "seed": 7}),
    ("calibrate", {"device_map": "auto", "max_memory": ("0=20GiB", "cpu=8GiB"), "resume": False}),
    (
        "calibrate",
        {"select": "kmeans", "clusters": 3, "groups": ("router", "dense"), "dtype": "float32"},
    ),
    ("calibrate", {"stream_layers": True, "hidden_states_dir": "hidden", "stats_dir": "stats"}),
    ("calibrate", {"template_args": ("enable_thinking=false", 'effort="low"')}),
    ("calibrate", {"skip_bad_rows": 3}),
    ("weights", {"stats_dir": "stats"}),
    ("repair", {"corpora": ("demo-code:2", "demo-math"), "tokens": 512, "dtype": "float32"}),
    (
        "export",
        {"mtp": "drop", "max_shard_size": "1GB", "keep_list": True, "pad": True, "verify": True},
    ),
    ("export", {"gguf": "q8_0", "llama_cpp": "llama.cpp", "top_k": 2}),
    ("evaluate", {"questions": 8, "answer_tokens": 64, "stops": ("Q:", r"\n\n")}),
    ("evaluate", {"corpora": ("rows.jsonl,answer=sum,check=number",), "measures": ("right",)}),
    (
        "evaluate",
        {
            "plans": (PLAN,),
            "measures": ("nll", "kl"),
            "bits": ("16", "4"),
            "seed": 7,
            "count": "response",
            "windows_per_document": 0,
            "top_k": 2,
        },
    ),
    ("sweep", {"criteria": ("reap", "man"), "sparsities": ("25%", "50%"), "samples": 4}),
    ("bins", {"bins": 4, "order": "index", "scope": "layer", "calibrated_on": ("demo-code",)}),
    (
        "benchmark",
        {"tasks": ("arc_easy", "piqa"), "limit": 0.5, "num_fewshot": 2, "chat_template": True},
    ),
    ("fit", {"ways": 2, "stats_dir": "stats"}),
    ("traffic", {"traces": ("a b.jsonl", "c.npz"), "model": "demo", "count": "response"}),
    ("traffic", {"skip_bad_rows": 2, "allow_small_ids": True}),
    ("variance", {"criteria": ("reap", "man"), "sparsities": ("25%",), "batch_size": 2}),
    ("ask", {"prompt": "two words", "max_new_tokens": 5, "raw": True, "lens": True}),
    ("ask", {"prompt": None, "text": "<b> of & two"}),
    ("subsets", {"criteria": ("reap", "ean"), "repair": True, "samples": 4}),
    ("search", {"out": "elsewhere", "device": "cpu"}),
    ("sensitivity", {"sparsities": ("25%", "50%"), "refine": 2, "levels": 4, "protect": ("0",)}),
    ("sensitivity", {"criterion": "heapr", "granularity": "neuron", "cost": "kl", "floor": 4}),
    ("plan", {"schedule": "measured", "measured_on": ("a.txt", "demo-math"), "across": "worst"}),
    ("plan", {"schedule": "early", "protect": ("0", "1-2"), "pin": ("0:1",), "lock": ("3",)}),
    ("plan", {"sparsity": None, "target_size": "1.5", "target_dtype": "bfloat16", "floor": 2}),
    ("plan", {"sparsity": None, "shrink": "40%", "uneven": True, "keep_super": True, "top_k": 2}),
    ("plan", {"criterion": None, "config_only": True, "multiple_of": 8}),
    ("plan", {"granularity": "neuron", "neuron_scope": "layer", "width_mode": "ragged"}),
    ("plan", {"gate": "renormalized", "runs": (RUN,), "multiple_of": 2}),
]


def test_a_command_that_does_not_exist_is_refused_by_the_same_parser():
    with pytest.raises(Exception, match="No such option: --OUT"):
        parsed("moeprune search recipe.yaml --OUT found")


def test_the_command_of_a_search_writes_where_the_request_says():
    line = KINDS["search"].request(recipe=SEARCHING, out="found").command()
    assert line == "moeprune search recipe.yaml --out found"
    assert str(parsed(line)["out_dir"]) == "found"


@pytest.mark.parametrize(("kind", "more"), [*((kind, {}) for kind in LEAST), *MORE], ids=str)
def test_the_command_of_a_request_is_read_by_the_program(kind, more):
    values = {name: value for name, value in {**LEAST[kind], **more}.items() if value is not None}
    request = validated(KINDS[kind].request if kind in KINDS else SpecRequest, values)
    fields, given = flat_fields(type(request)), flat_values(request)
    assert [
        name for name in more if name in values and given[name] == default_of(fields[name])
    ] == []
    parsed(request.command())


CHARTS = [
    {"criterion": "msan", "corpora": "demo-stories", "sparsity": "25%"},
    {"criterion": "0,2,1", "gate": "renormalized", "corpora": "demo-math", "schedule": "middle"},
    {"model": "weighed", "criterion": "magnitude", "baseline": "AIMER", "sparsity": "35%"},
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
    test = unfolded(open_page("export", **address), "export.kept")
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
    offered = {}

    def offer(_label, make, file_name, **_options):
        offered[file_name] = make

    monkeypatch.setattr("app.widgets.charts.st.download_button", offer)
    test = open_page("export", corpora="demo-math")
    run(test.code[0].value.splitlines()[0])
    assert (tmp_path / "plan.json").read_text() == offered["plan.json"]()


def test_commands_of_the_start_page_are_accepted(open_page, run):
    listing, _, weights = [code.value for code in open_page("start", "bare").code][:3]
    assert "demo-weights" in run(listing)
    run(weights)


def test_the_command_of_a_calibration_says_how_documents_are_fed(open_page, run, queued_jobs):
    test = open_page("start")
    presets = [option for option in test.selectbox(key="start.corpus").options if "hub" in option]
    assert presets[0] == "c4 (from the hub)"
    test.selectbox(key="start.corpus").select("demo-math")
    test.selectbox(key="start.packing").select("pack")
    test.selectbox(key="start.count").select("response")
    next(button for button in test.button if button.label == "Run calibration").click().run()
    (job,) = queued_jobs()
    assert "--packing pack --count response" in job.command
    lines = run(f"{job.command} --dry-run").splitlines()  # more where little memory is free
    said = dict(line.split("  ", 1) for line in lines if "  " in line.strip())
    said = {fact: value.strip() for fact, value in said.items()}
    assert (said["corpus"], said["packing"], said["count"]) == ("demo-math", "pack", "response")
    assert int(said["counted"].replace(",", "")) < int(said["tokens"].replace(",", ""))


@pytest.fixture
def stats_dir(folders, tmp_path):
    """A copy: some of the commands write."""
    return shutil.copytree(folders[1], tmp_path / "stats")
