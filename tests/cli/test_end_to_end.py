"""`python -m tools.end_to_end`: its commands work, and its page says what their files say."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from analysis.errors import UserError
from pruning.plan.plan_file import load_plan
from pruning.plan.sizes import format_bytes
from pruning.requests.machine import Machine
from pruning.requests.recipe_file import load_recipe
from tools.end_to_end import Step, report_of, run_all

SHIPPED = Path(__file__).parents[2] / "docs" / "recipes"


@pytest.fixture
def step(moeprune):
    """A command in this process, as the tool starts it in another."""

    def run(words):
        done = moeprune(*words, "--json")
        assert done.code == 0, done.err
        return Step(" ".join(words), 1.5, json.loads(done.out))

    return run


def test_the_page_is_about_the_files(other, corpora, here, step):
    ranked, held_out = map(str, corpora)
    keys = {
        **{"model": str(other), "corpora": [ranked], "tokens": 64, "seq_len": 16, "seed": 3},
        **{"criterion": "reap", "budget": {"sparsity": "50%"}, "limits": {"keep_super": True}},
        **{"repair": {"tokens": 32}, "evaluate": {"corpus": held_out, "samples": 4}},
        "export": {"out": "pruned", "verify": True},
    }
    path = here / "small.yaml"
    path.write_text(json.dumps(keys))
    recipe, machine = load_recipe(path), Machine(stats_dir=Path("stats"))
    steps, exported = run_all(recipe, Path("small.yaml"), machine, 2, step)
    page = report_of(recipe, path, steps, exported)
    # Random is another choice of the same counts.
    plans = [load_plan(here / f"small.{name}.json") for name in ("repaired", "random", "random-1")]
    assert [[len(ids) for ids in plan.kept.values()] for plan in plans] == [[4, 4, 4]] * 3
    assert len({plan.unrepaired.digest for plan in plans}) == 3
    # Its losses are those of the records, its bytes those of the tensors.
    losses = [
        evaluation["metrics"]["nll"]["mean"]
        for evaluation in json.loads((here / "small.compared.json").read_text())["evaluations"]
    ]
    rows = [line for line in page.splitlines() if "| blue" in line]
    assert [float(row.split("|")[5].split()[0]) for row in rows] == pytest.approx(losses, abs=1e-4)
    shards = map(load_file, (here / "pruned").glob("*.safetensors"))
    nbytes = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    assert f"-> {format_bytes(nbytes)} (" in page
    assert "| Experts | 21 -> 12 |" in page
    assert re.search(r"Verified \| logits, \d+ checks", page)
    assert "vllm.entrypoints.openai.api_server --model pruned" in page
    # Run again, it resumes and says the same of all but time.
    again, exported = run_all(recipe, Path("small.yaml"), machine, 2, step)
    of_time = page.index("## Notes")
    assert report_of(recipe, path, again, exported)[:of_time] == page[:of_time]


def test_what_cannot_be_compared_is_refused(other, corpora, here, step):
    keys = {"model": str(other), "corpora": [str(corpora[0])], "criterion": "reap"}
    (here / "r.yaml").write_text(json.dumps(keys | {"budget": {"sparsity": "50%"}}))
    with pytest.raises(UserError, match="has no key evaluate"):
        run_all(load_recipe(here / "r.yaml"), here / "r.yaml", Machine(), 1, step)


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_recipes_can_be_run(path):
    recipe = load_recipe(path)
    assert recipe.evaluate and recipe.export and recipe.export.verify
    assert recipe.evaluate.corpus not in recipe.plan.ranking.corpora
