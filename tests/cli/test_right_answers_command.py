"""evaluate and sweep on a corpus with a check: right answers of the demo, beside its loss."""

import json
import re

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from analysis.corpora.sources import seeded_order
from analysis.demo.held_out import benchmark_texts
from analysis.files.shipped import DEMO_CHECKPOINT
from pruning.model import Model
from pruning.plan.plan_file import load_plan

QUESTIONS, LENGTH = 4, 72
WORDS = ("--measure", "nll", "--samples", "2", "--questions", QUESTIONS, "--dtype", "float32")
WORDS += ("--answer-tokens", LENGTH, "--stats-dir", "own")


@pytest.fixture(scope="module")
def problems():
    """Held-out word problems, with the number that is right; of the last, with another one."""
    texts = benchmark_texts("demo-math")[:QUESTIONS]
    return {text.prompt: int(text.answer) + (text is texts[-1]) for text in texts}


@pytest.fixture(scope="module")
def written(problems):
    """What the demo writes to each, token by token by whole forwards."""
    model = AutoModelForCausalLM.from_pretrained(DEMO_CHECKPOINT, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(DEMO_CHECKPOINT)
    texts = {}
    for prompt in problems:
        ids = tokenizer.encode(f"<|user|>{prompt}<|assistant|>", add_special_tokens=False)
        start = len(ids)
        with torch.no_grad():
            while len(ids) < start + LENGTH and ids[-1] != model.generation_config.eos_token_id:
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        texts[prompt] = tokenizer.decode(ids[start:], skip_special_tokens=True)
    return texts


@pytest.fixture
def rows(problems, here):
    path = here / "rows.jsonl"
    lines = [
        json.dumps({"prompt": problem, "response": f"It is {number}.", "sum": number})
        for problem, number in problems.items()
    ]
    path.write_text("\n".join(lines))
    return f"{path},answer=sum,check=number"


def test_right_answers_stand_beside_the_loss(works, rows, problems, written, here):
    numbers = {prompt: re.findall(r"-?\d+", text)[-1:] for prompt, text in written.items()}
    right = [numbers[prompt] == [str(number)] for prompt, number in problems.items()]
    assert 0 < sum(right) < QUESTIONS  # a test of both
    works("plan", "demo", "--criterion", "random", "--sparsity", "75%", "-o", "plan.json")
    printed = works("evaluate", "demo", "--corpus", rows, "--plan", "plan.json", *WORDS)
    result = json.loads((here / "result.json").read_text())
    kept = result["right_answers"]
    assert sum(kept["full_right"]) == sum(right)
    assert result["full"]["right"]["mean"] == pytest.approx(sum(right) / QUESTIONS)
    assert kept["check"] == "number"
    share, full = (f"{result[name]['right']['mean']:.0%}" for name in ("metrics", "full"))
    assert re.search(rf"right answers {share} \[.*original {full} \[.*{QUESTIONS} quest", printed)
    # Python finds it; the same file without its check is the same corpus, and is known too.
    options = {"samples": 2, "questions": QUESTIONS, "answer_tokens": LENGTH, "dtype": "float32"}
    model = Model("demo", stats_dir="own")
    for corpus in (rows, rows.partition(",")[0]):
        found = model.evaluate(
            load_plan(here / "plan.json"), corpus=corpus, measures=["nll"], **options
        )
        assert json.loads(found.to_json()) == result
    drawn = tuple(int(right[number]) for number in seeded_order(QUESTIONS, 42))
    assert found.right_answers.full_right == drawn


def test_a_sweep_has_them_as_a_measure(works, rows, here):
    words = ("--criterion", "aimer", "--sparsity", "50%", "--corpus", rows)
    printed = works("sweep", "demo", *words, *WORDS)
    table = pd.read_csv(here / "sweep.csv")
    right = table[table["measure"] == "right"]
    assert right["num_samples"].tolist() == [QUESTIONS] * 2
    assert len(set(right["full"])) == 1
    for mean in right["mean"]:
        assert re.search(rf"\s{mean:.0%}\s", printed)


def test_by_layers_the_loss_is_measured_and_answers_are_not(moeprune, rows, here):
    outcome = moeprune("evaluate", "demo", "--corpus", rows, "--stream-layers", *WORDS)
    assert outcome.code == 0
    assert "answers are not checked: with --stream-layers" in outcome.err
    assert set(json.loads((here / "result.json").read_text())["metrics"]) == {"nll"}
