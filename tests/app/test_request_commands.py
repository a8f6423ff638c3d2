"""The command line of every request is one that the program reads, whatever the request says."""

import shlex

import pytest

from app.cli import load
from app.jobs.kinds import KINDS
from pruning.requests.plan import PlanRequest

PLAN = {"kept": {"0": [0]}}
SEARCHING = (
    "model: demo\ncorpora: [demo-code]\ncriterion: reap\nbudget: {sparsity: 50%}\n"
    "search: {corpus: demo-math}\n"
)
MEASURED = {"model": "demo", "corpora": ("demo-math",)}
# The least that each kind asks for.
LEAST = {
    "calibrate": {"model": "demo", "corpus": "demo-math"},
    "weights": {"model": "demo"},
    "export": {"model": "demo", "plan": PLAN, "out": "smaller"},
    "evaluate": MEASURED,
    "sweep": {**MEASURED, "criteria": ("reap",), "sparsities": ("25%",)},
    "bins": {**MEASURED, "criterion": "reap"},
    "benchmark": {"model": "demo"},
    "variance": MEASURED,
    "ask": {"model": "demo", "prompt": "- why?"},
    "search": {"recipe": SEARCHING, "out": "found"},
    "plan": {"model": "demo", "criterion": "heapr", "sparsity": "25%"},
}
# Beside the least, values of which none is a default: of every form that an option has.
MORE = [
    ("calibrate", {"tokens": 512, "packing": "pack", "count": "response", "seed": 7}),
    ("calibrate", {"device_map": "auto", "max_memory": ("0=20GiB", "cpu=8GiB"), "resume": False}),
    (
        "calibrate",
        {"select": "kmeans", "clusters": 3, "groups": "routed,router", "dtype": "float32"},
    ),
    ("calibrate", {"stream_layers": True, "hidden_states_dir": "hidden", "stats_dir": "stats"}),
    ("weights", {"stats_dir": "stats"}),
    ("export", {"mtp": "drop", "max_shard_size": "1GB", "keep_list": True, "verify": True}),
    ("evaluate", {"plans": (PLAN,), "measures": "nll", "seed": 7, "count": "response"}),
    ("sweep", {"criteria": ("reap", "man"), "sparsities": ("25%", "50%"), "samples": 4}),
    ("bins", {"bins": 4, "order": "index", "scope": "layer", "calibrated_on": ("demo-code",)}),
    ("benchmark", {"tasks": "arc_easy", "limit": 0.5, "num_fewshot": 2, "chat_template": True}),
    ("variance", {"criteria": ("reap", "man"), "sparsities": ("25%",), "batch_size": 2}),
    ("ask", {"prompt": "two words", "max_new_tokens": 5, "raw": True}),
    ("search", {"out": "elsewhere", "device": "cpu"}),
    ("plan", {"schedule": "early", "protect": ("0", "1-2"), "pin": ("0:1",), "lock": ("3",)}),
    ("plan", {"sparsity": None, "target_gib": "1.5", "target_dtype": "bfloat16", "floor": 2}),
    ("plan", {"granularity": "atomic", "atom_scope": "layer", "width_mode": "ragged"}),
    ("plan", {"gate": "renormalized", "runs": ("demo-demo-math-5455904a",), "multiple_of": 2}),
]


def parsed(line):
    """What the program's own parser makes of a command line; it is not run."""
    program, name, *words = shlex.split(line)
    assert program == "moeprune"
    command = load(name)
    if hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    with command.make_context(name, words) as context:
        return context.params


def test_a_command_that_does_not_exist_is_refused_by_the_same_parser():
    with pytest.raises(Exception, match="No such option: --OUT"):
        parsed("moeprune search recipe.yaml --OUT found")


def test_the_command_of_a_search_writes_where_the_request_says():
    line = KINDS["search"].request(recipe=SEARCHING, out="found").command()
    assert line == "moeprune search recipe.yaml --out found"
    assert str(parsed(line)["out_dir"]) == "found"


PAGES = [
    ("start", {}),
    ("explore", {"tab": "Score and loss"}),
    ("explore", {"tab": "Overlap"}),
    ("compare", {}),
    ("plan", {}),
    ("plan", {"granularity": "Neurons"}),
    ("export", {}),
    ("evaluate", {}),
    ("evaluate", {"results": "Benchmarks"}),
    ("evaluate", {"results": "Hidden states"}),
    ("evaluate", {"results": "Ask both models"}),
]


@pytest.mark.parametrize(("view", "address"), PAGES, ids=str)
def test_every_command_that_a_page_shows_is_read_by_the_program(
    open_page, tmp_path, monkeypatch, view, address
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results.json").touch()  # of another tool, which a person has
    test = open_page(view, **address)
    if (view, address) == ("plan", {}):
        test.session_state["search.form"] = True
        test.run()
    lines = [line for code in test.code for line in code.value.splitlines()]
    commands = [line for line in lines if line.startswith("moeprune ")]
    assert commands
    assert any("--granularity atomic" in line for line in commands) == (
        "Neurons" in address.values()
    )
    for line in commands:
        parsed(line)


@pytest.mark.parametrize(("kind", "more"), [*((kind, {}) for kind in LEAST), *MORE], ids=str)
def test_the_command_of_a_request_is_read_by_the_program(kind, more):
    values = {name: value for name, value in {**LEAST[kind], **more}.items() if value is not None}
    made = (KINDS[kind].request if kind in KINDS else PlanRequest)(**values)
    defaults = {name: field.default for name, field in type(made).model_fields.items()}
    usual = [name for name in more if name in values and getattr(made, name) == defaults[name]]
    assert usual == []
    parsed(made.command())
