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


def test_another_file_of_that_name_stays(export, moeprune, here):
    (here / "small-fp8.yaml").write_text("mine")
    outcome = moeprune("export", "demo", "small", "--plan", "plan.json", "--recipe", "fp8")
    assert "small-fp8.yaml is there already, with another content" in outcome.err
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
