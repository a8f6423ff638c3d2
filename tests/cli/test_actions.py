"""What every action holds: its command, its job, its form and Python are one, and leave one record.

A new action adds a row to `ASKED`: the least that it asks for, small.
"""

import json
import re
import shlex
import shutil
from dataclasses import replace

import pytest
from page_texts import parsed

from analysis.drain import drain
from analysis.errors import UserError
from analysis.model.opening import load_model_index
from app.cli import COMMANDS
from app.jobs.kinds import KINDS, kind_of
from app.jobs.table import canonical_json
from app.widgets.action_form import form_fields
from builders.traffic import write_traces
from pruning import Model
from pruning.actions.listing import SENTENCES, action
from pruning.plan.plan_file import load_plan
from pruning.spec.base import flat_fields, is_plan, validated

_TEXT = {"corpora": ("{blue}",), "samples": 3, "seq_len": 8}
_ORDER = {**_TEXT, "criterion": "reap", "calibrated_on": ("{red}",)}
# Action -> the values of its request besides the model; words in braces stand for files.
ASKED = {
    "calibrate": {"corpus": "{red}", "tokens": 64, "seq_len": 8},
    "weights": {},
    "bins": {**_ORDER, "bins": 2},
    "subsets": {**_TEXT, "criteria": ("reap",), "sparsity": "50%", "calibrated_on": ("{red}",)},
    "sensitivity": {**_ORDER, "levels": 2},
    "topk": {**_TEXT, "levels": 2},
    "search": {"recipe": "{recipe}", "out": "found"},
    "fit": {"model": "demo", "target_size": "3.5MiB"},
    "allocate": {"target_size": "1GiB", "plans": ("{plan}",)},
    "repair": {"plan": "{plan}", "corpora": ("{red}",), "tokens": 64, "seq_len": 8},
    "evaluate": {**_TEXT, "plans": ("{plan}",)},
    "sweep": {
        **_TEXT,
        "criteria": ("reap",),
        "sparsities": ("50%",),
        "calibrated_on": ("{red}",),
    },
    "benchmark": {"model": "demo", "tasks": ("demo-math-exact",), "limit": 1},
    "variance": {**_TEXT, "plans": ("{plan}",)},
    "ask": {"model": "demo", "prompt": "A room is 7 m by", "max_new_tokens": 2},
    "export": {"plan": "{plan}", "out": "smaller"},
    "placement": {"budget": "100KiB", "calibrated_on": ("{red}",)},
    "traffic": {"plan": "{plan}", "traces": ("{traces}",)},
    "compare-checkpoints": {"pruned": "{tiny}"},
}
_RECIPE = """model: {model}
corpora: ["{red}"]
tokens: 64
seq_len: 8
criterion: reap
budget: {{sparsity: 50%}}
search: {{corpus: "{blue}", samples: 3, population: 6, elites: 2, generations: 1}}
"""
every_action = pytest.mark.parametrize("name", SENTENCES)


def test_every_action_has_a_row_here():
    assert set(ASKED) == set(SENTENCES)


@pytest.fixture
def stats(stats, tmp_path):
    """A copy: actions write their runs and records there."""
    return shutil.copytree(stats, tmp_path / "stats")


@pytest.fixture
def plan(works, tiny, corpora, stats, here):
    words = ("--criterion", "reap", "--calibrated-on", corpora[0], "--sparsity", "50%")
    works("plan", tiny, *words, "--stats-dir", stats)
    return here / "plan.json"


@pytest.fixture
def asked(tiny, corpora, stats, plan, works):
    """The values of an action's request; plans by their content."""
    traces = write_traces(plan.with_name("monday.jsonl"), load_model_index(str(tiny)).layers)
    places = {"red": str(corpora[0]), "blue": str(corpora[1]), "traces": str(traces)}
    places["tiny"] = str(tiny)
    recipe = _RECIPE.format(model=tiny, **places)
    plan.with_name("recipe.yaml").write_text(recipe)  # as the command of a search names it

    def fill(value):
        if value == "{plan}":
            return load_plan(plan).to_dict()
        if value == "{recipe}":
            return recipe
        if isinstance(value, tuple):
            return tuple(map(fill, value))
        return value.format(**places) if isinstance(value, str) else value

    def values(name):
        if name == "allocate":  # by what sensitivity measures
            words = ("--criterion", "random", "--levels", "2", "--bits", "4", "--seq-len", "8")
            where = ("--corpus", corpora[0], "--samples", "2", "--stats-dir", stats)
            works("sensitivity", tiny, *words, *where)
        own = {field: fill(value) for field, value in ASKED[name].items()}
        model = {"model": str(tiny)} if "model" in flat_fields(action(name).request) else {}
        return {**model, "stats_dir": str(stats), **own}

    return values


@every_action
class TestAction:
    def test_its_command_has_its_sentence_and_an_example_of_its_own(self, name):
        assert COMMANDS[name] == SENTENCES[name]
        assert action(name).example.split()[0] == name
        parsed(f"moeprune {action(name).example}")

    def test_its_request_is_read_from_its_command_and_a_stored_job_without_surplus(
        self, name, asked
    ):
        values = asked(name)
        request = validated(action(name).request, values)
        parsed(request.command())
        stored = json.loads(canonical_json(request.model_dump(mode="json")))
        assert validated(action(name).request, stored) == request
        assert request.asked_by == name
        assert kind_of(request) == name
        with pytest.raises(UserError, match="surplus"):
            validated(action(name).request, {**values, "surplus": 1})

    def test_command_job_and_python_tell_the_same(self, name, asked, moeprune, stats, here):
        request = validated(action(name).request, asked(name))
        first = drain(KINDS[name].job(request.model_dump(mode="json")))
        assert first["sentence"]
        assert not first["sentence"].endswith(".")
        _, *words = shlex.split(request.command())
        outcome = moeprune(*words, "--json")
        assert outcome.code == 0, outcome.err
        said = json.loads(outcome.out)
        again = drain(KINDS[name].job(request.model_dump(mode="json")))
        numbers = without_times(again)
        told = {**without_times(said["result"]), "sentence": again["sentence"]}
        assert {
            key: told.get(key) for key in numbers
        } == numbers  # texts of a person are told alone
        assert set(first) == set(again)
        outcome = moeprune(*words, *(["--force"] if request.writes else []))
        assert untimed(again["sentence"]) in untimed(outcome.out)
        if writes := request.writes:
            assert (here / writes).stat().st_size > 0
        for line in said["next"]:
            parsed(line)
        options = {key: value for key, value in asked(name).items() if key not in _PLACE}
        if "model" in asked(name):  # a recipe names its own
            model = Model(request.model, stats_dir=request.stats_dir)
            assert model.run(name, **options) is not None

    def test_its_form_draws_fields_that_its_request_has(self, name):
        fields = list(form_fields(action(name).request, {}))
        assert set(fields) <= set(flat_fields(action(name).request))
        assert not any(is_plan(flat_fields(action(name).request)[field]) for field in fields)
        # Nobody runs code of a checkpoint, or names a file of the server, in a form.
        alone = {"trust_remote_code", "allow_test_set", "allow_small_ids", "source", "plan_model"}
        assert not {*fields} & alone
        kinds = flat_fields(action(name).request)
        words = {field for field in fields if kinds[field].annotation in (str, str | None)}
        assert words <= {"criterion", "sparsity"}


def test_a_job_of_an_earlier_version_is_read(asked, tmp_path):
    """Requests to ask and to measure hidden states had names of plans."""
    stored = {**asked("variance"), "names": ["REAP 50%"]}
    assert drain(KINDS["variance"].job(stored))["sentence"]


def test_a_result_that_cannot_be_told_is_stored_all_the_same(asked):
    row = replace(action("variance"), tell=refuse)
    assert drain(row.job(asked("variance"))) == {"sentence": "stored; it is gone"}


def refuse(call, value):
    raise UserError("it is gone")


_PLACE = ("model", "stats_dir")


def untimed(words):
    """Words without seconds."""
    return re.sub(r"[\d.,]+ s\b", "", words)


def without_times(numbers):
    """The numbers of an outcome, but for how long it took."""
    return {
        key: [without_times(part) for part in value] if _are_rows(value) else value
        for key, value in numbers.items()
        if key != "seconds"
    }


def _are_rows(value):
    return isinstance(value, list) and all(isinstance(part, dict) for part in value)
