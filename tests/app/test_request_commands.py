"""The command line of every request is one that the program reads, whatever the request says."""

import shlex

import pytest

from app.cli import load
from app.jobs.kinds import KINDS
from pruning.requests.plan import PlanRequest

KIND_OF = {kind.request: name for name, kind in KINDS.items()} | {PlanRequest: "plan"}
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
# A value for each field, none of them a default; what it needs beside it stands in BESIDE.
OTHER = {
    "allow_test_set": True,
    "answer_tokens": 8,
    "answers": "own",
    "atom_scope": "layer",
    "attention": "eager",
    "batch_size": 2,
    "bins": 4,
    "calibrated_on": ("demo-code", "demo-math"),
    "chat_template": True,
    "checkpoint_activations": True,
    "clusters": 3,
    "corpora": ("demo-code", "demo-math"),
    "corpus": "demo-prose",
    "count": "response",
    "criteria": ("reap", "man"),
    "criterion": "random",
    "device": "cpu",
    "device_map": "auto",
    "drop": ("0:1", "1:2,3"),
    "dtype": "float32",
    "expert_parallel": True,
    "floor": 2,
    "gate": "renormalized",
    "granularity": "atomic",
    "groups": "routed,router",
    "hash_source": True,
    "hidden_states_dir": "hidden",
    "keep_list": True,
    "kept_atoms": "kept.json",
    "layer_set": ("0=8",),
    "limit": 0.5,
    "lock": ("0", "2-3"),
    "max_memory": ("0=20GiB", "cpu=8GiB"),
    "max_new_tokens": 5,
    "max_shard_size": "1GB",
    "measures": "nll",
    "model": "other",
    "mtp": "drop",
    "multiple_of": 2,
    "names": ("mine",),
    "num_fewshot": 2,
    "offload_folder": "offloaded",
    "order": "index",
    "out": "elsewhere",
    "packing": "pack",
    "params_share": "50%",
    "pin": ("0:1",),
    "plan": PLAN,
    "plans": (PLAN,),
    "prompt": "two words",
    "protect": ("0", "1-2"),
    "raw": True,
    "recipe": SEARCHING,
    "remove": 48,
    "resume": False,
    "revision": "main",
    "runs": ("demo-demo-math-5455904a",),
    "samples": 4,
    "schedule": "early",
    "schedule_file": "schedule.json",
    "scope": "layer",
    "seed": 7,
    "select": "kmeans",
    "seq_len": 64,
    "source": "whole",
    "sparsities": ("25%", "50%"),
    "sparsity": "75%",
    "stats_dir": "stats",
    "stream_layers": True,
    "target_dtype": "bfloat16",
    "target_gib": "1.5",
    "tasks": "arc_easy",
    "tokens": 512,
    "truncate": "tail",
    "trust_remote_code": True,
    "verify": True,
    "width_mode": "ragged",
    "width_multiple_of": 16,
}
BESIDE = {
    "answer_tokens": {"answers": "own"},
    "clusters": {"select": "kmeans"},
    "select": {"clusters": 3},
    "hidden_states_dir": {"stream_layers": True},
    "checkpoint_activations": {"groups": "routed,gradient"},
    "kept_atoms": {"granularity": "atomic", "sparsity": None},
    "max_memory": {"device_map": "auto"},
    "offload_folder": {"device_map": "auto"},
    "params_share": {"granularity": "atomic", "sparsity": None},
    "granularity": {"criterion": "heapr", "criteria": ("heapr",)},
    "atom_scope": {"granularity": "atomic", "criteria": ("heapr",)},
    "width_mode": {"granularity": "atomic"},
    "width_multiple_of": {"granularity": "atomic"},
    "remove": {"sparsity": None},
    "target_gib": {"sparsity": None},
    "schedule_file": {"schedule": "file", "sparsity": None},
}


def asked(kind, name):
    """A request of a kind in which one field has another value."""
    least = dict(LEAST[KIND_OF[kind]])
    needed = BESIDE.get(name, {}).items()
    beside = {field: value for field, value in needed if field in kind.model_fields}
    if name == "hidden_states_dir" and KIND_OF[kind] != "calibrate":
        beside = {}  # a measurement reads layer by layer as it is
    if {"plans", "names"} <= set(kind.model_fields) and name in ("plans", "names"):
        beside = {"plans": OTHER["plans"], "names": OTHER["names"]}
    if KIND_OF[kind] == "variance" and name in ("criteria", "sparsities"):
        beside = {"criteria": OTHER["criteria"], "sparsities": OTHER["sparsities"]}
    other = OTHER[name]
    if name == "corpora" and KIND_OF[kind] in ("bins", "variance"):
        other = other[:1]  # these run on one
    values = {**least, **beside, name: other}
    return kind(**{field: value for field, value in values.items() if value is not None})


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


CASES = [(kind, name) for kind in KIND_OF for name in kind.model_fields]


@pytest.mark.parametrize(
    ("kind", "name"), CASES, ids=lambda each: each if isinstance(each, str) else each.__name__
)
def test_the_command_of_a_request_is_read_by_the_program(kind, name):
    request = asked(kind, name)
    assert getattr(request, name) != kind.model_fields[name].default
    parsed(request.command())


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
