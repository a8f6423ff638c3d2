"""`export --recipe`: a recipe, its tokens and a script of llm-compressor, beside the export."""

import json

import pytest
import yaml
from tokenizers import Tokenizer

from analysis.files.shipped import DEMO_CHECKPOINT

PLAN = ("--sparsity", "75%", "-o", "plan.json")


@pytest.fixture
def export(works, here):
    """Export the demo by REAP on demo-math, with these words."""
    works("plan", "demo", "--criterion", "reap", "--calibrated-on", "demo-math", *PLAN)

    def run(*words):
        return works("export", "demo", "small", "--plan", "plan.json", *words)

    return run


def test_fp8_needs_no_text(export, here):
    assert export("--recipe", "fp8").endswith("next: python small-fp8.py\n")
    stage = yaml.safe_load((here / "small-fp8.yaml").read_text())["quant_stage"]
    modifier = stage["quant_modifiers"]["QuantizationModifier"]
    assert (modifier["scheme"], modifier["targets"]) == ("FP8_DYNAMIC", ["Linear"])
    assert r"re:.*\.\d+\.mlp\.gate$" in modifier["ignore"]
    script = (here / "small-fp8.py").read_text()
    compile(script, "small-fp8.py", "exec")
    assert "here / 'small'," in script
    # The demo's exports have a head of their own, which must survive.
    assert "lm_head.weight" in script
    assert not list(here.glob("*.jsonl"))


def test_awq_is_calibrated_on_the_text_that_ranked(export, here):
    export("--recipe", "awq")
    script = (here / "small-awq.py").read_text()
    compile(script, "small-awq.py", "exec")
    lines = (here / "small-awq.rows.jsonl").read_text().splitlines()
    rows = [json.loads(line)["input_ids"] for line in lines]
    assert 65_536 <= sum(map(len, rows)) < 66_000
    tokenizer = Tokenizer.from_file(str(DEMO_CHECKPOINT / "tokenizer.json"))
    assert "how many" in tokenizer.decode(rows[0]).lower()  # a worked problem
    groups = yaml.safe_load((here / "small-awq.yaml").read_text())["quant_stage"]
    # Never the norm before the router, whose rows llm-compressor leaves as they are.
    mappings = groups["quant_modifiers"]["AWQModifier"]["mappings"]
    assert [mapping["smooth_layer"] for mapping in mappings] == ["re:.*up_proj$"]
    weights = groups["quant_modifiers"]["QuantizationModifier"]["config_groups"]["group_0"]
    assert weights["weights"]["group_size"] == 64  # experts have 64 neurons
    export("--recipe", "awq")  # the same again is left as it is


def test_another_file_of_that_name_stays(export, refused, here):
    (here / "small-fp8.yaml").write_text("mine")
    words = ("export", "demo", "small", "--plan", "plan.json", "--recipe", "fp8")
    assert "small-fp8.yaml is there already, of another export" in refused(*words)
    export()
    assert "small-fp8.yaml is there already, with another content" in refused(*words)
    assert (here / "small-fp8.yaml").read_text() == "mine"
    assert not (here / "small-fp8.py").exists()


def test_a_named_corpus_takes_the_place(export, here, corpora):
    red = corpora[0]
    export("--recipe", "nvfp4", "--recipe-corpus", str(red))
    rows = [json.loads(line) for line in (here / "small-nvfp4.rows.jsonl").read_text().splitlines()]
    known = [json.loads(line)["input_ids"] for line in red.read_text().splitlines()]
    assert sorted(row["input_ids"] for row in rows) == sorted(known)


def test_what_cannot_be_run_is_refused_before_any_work(refused, works, here, tiny):
    words = ("--criterion", "aimer", "--sparsity", "50%")
    works("plan", "demo", *words, "-o", "aimer.json")
    works("plan", "demo", *words, "--schedule", "global", "-o", "uneven.json")
    works("plan", tiny, *words, "-o", "tiny.json")
    export = ("export", "demo", "out", "--recipe")
    assert "ranked without text" in refused(*export, "awq", "--plan", "aimer.json")
    assert "its layers differ" in refused(*export, "fp8", "--plan", "uneven.json")
    no_tokenizer = ("export", tiny, "out", "--recipe", "awq", "--plan", "tiny.json")
    assert "it has no tokenizer" in refused(*no_tokenizer)
    corpus = ("--plan", "aimer.json", "--recipe-corpus", "demo-code")
    assert "goes with --recipe nvfp4 or awq" in refused(*export, "fp8", *corpus)
    absent = ("--plan", "uneven.json", "--pad", "--recipe-corpus", "none.jsonl")
    assert "none.jsonl does not exist" in refused(*export, "nvfp4", *absent)
    unnamed = ("export", "demo", ".", "--plan", "uneven.json", "--recipe", "fp8")
    assert "named after it" in refused(*unnamed)


def test_a_plan_of_neurons_has_the_rows_that_it_makes(moeprune, works, here):
    scope = ("--neuron-scope", "expert", "--sparsity", "40%")  # 39 of 64 stay, stored as 40
    words = ("--granularity", "neuron", "--criterion", "neuron-norms", *scope)
    works("plan", "demo", *words, "-o", "neurons.json")

    def asked(*more):
        plan = ("--plan", "neurons.json", "--recipe", "nvfp4", "--recipe-corpus", "demo-code")
        return moeprune("export", "demo", "out", *plan, *more)

    assert "multiple of 16 weights, and the width of experts in layer 0 is 40" in asked().err
    assert "multiple of 16 weights" in asked("--dry-run").err
    assert "--width-mode uniform" in asked("--width-mode", "ragged").err
    assert "nothing was written" in asked("--width-multiple-of", "16", "--dry-run").out
    assert not (here / "out").exists()
