"""Commands that commands print as the next ones: each works as it is printed."""

import re
import shlex
import shutil

import pytest
from exports import export, keeping
from published_models import QWEN3, hollow_checkpoint

from analysis.families.listing import FAMILIES
from analysis.families.needs import why_too_old
from analysis.model.opening import load_model_index
from pruning.plan.plan import keep_all
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.following import evaluate_command
from pruning.requests.repair import RepairRequest
from pruning.spec.base import validated

BEGIN = {
    "calibrate": "calibrate {tiny} --corpus {red} --tokens 64 --seq-len 16 --stats-dir stats",
    "weights": "weights {tiny} --stats-dir stats",
    "gate": "score {tiny} --criterion reap --calibrated-on {red} --gate renormalized "
    "--stats-dir {stats}",
    "run": "score {tiny} --criterion reap --run {run} --stats-dir {stats}",
    "overlap": "overlap {tiny} --sparsity 50% --gate renormalized --stats-dir {stats}",
    "evaluate": "evaluate {tiny} --corpus {red} --samples 2 --stats-dir stats",
    "sensitivity": "sensitivity {tiny} --criterion reap --corpus {red} --calibrated-on {blue} "
    "--samples 2 --levels 2 --gate renormalized --stats-dir {stats}",
    "bins": "bins {tiny} --criterion reap --corpus {red} --calibrated-on {blue} --bins 2 "
    "--gate renormalized --stats-dir {stats}",
    "counts": "plan {tiny}/config.json --config-only --shrink 30%",
    "little can go": "weights half --stats-dir stats",
}
# They take a while, and are tested elsewhere.
LEFT_OUT = "report"
COUNTS = {"num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}
LARGE = {**QWEN3, **COUNTS, "moe_intermediate_size": 1 << 24}  # 3 TiB of holes
SOME = ("--criterion", "random", "--remove", 2)


@pytest.fixture(scope="module")
def half(models, tmp_path_factory):
    """A plan, and the export by it."""
    folder = tmp_path_factory.mktemp("half")
    model = load_model_index(str(models / "tiny"))
    keeping(model, (0, 2, 5)).save(folder / "plan.json")
    export(model, (0, 2, 5), folder / "half")
    return folder


@pytest.fixture(scope="module")
def ran():
    """Lines that were run: where another chain leads to one, it is not followed again."""
    return set()


@pytest.mark.parametrize("name", BEGIN)
def test_every_next_command_works_where_its_files_are_taken(
    name, works, tiny, corpora, stats, run_ids, here, half, ran
):
    shutil.copytree(half, here, dirs_exist_ok=True)
    for taken in ("tiny-pruned", "half-pruned"):
        (here / taken).mkdir()
        (here / taken / "file").touch()
    red, blue = corpora
    shutil.copy(blue, here / "held-out.jsonl")
    (here / "stats").mkdir()
    places = {"tiny": tiny, "red": red, "blue": blue, "run": run_ids["tiny", "red"]}
    if "{stats}" in BEGIN[name]:
        shutil.copytree(stats, here / "stats", dirs_exist_ok=True)
    left = [BEGIN[name].format(**places, stats="stats")]
    asked = set(left)
    while left:
        line = left.pop().replace("CORPUS", str(red))
        if line in ran:
            continue
        ran.add(line)
        printed = works(*shlex.split(line))
        following = re.findall(r"next: moeprune (.+)", printed)
        left += [
            command_line
            for command_line in following
            if command_line not in asked and not command_line.startswith(LEFT_OUT)
        ]
        asked |= set(following)
        if line.startswith("plan"):
            assert " --gate renormalized" in line or "renormalized" not in BEGIN[name]
    assert len(asked) > 1


@pytest.mark.parametrize(
    ("calibrated", "wanted"),
    [(["red"], "blue"), (["blue"], "red"), (["red", "blue"], "held-out.jsonl")],
)
def test_a_plan_is_evaluated_on_a_corpus_that_it_did_not_read(
    works, tiny, corpora, stats, here, calibrated, wanted
):
    folder = corpora[0].parent
    shutil.copytree(folder, here / folder.name)
    places = {path.stem: f"{folder.name}/{path.name}" for path in corpora}
    read = [word for name in calibrated for word in ("--calibrated-on", places[name])]
    words = ("plan", tiny, "--criterion", "reap", *read, "--remove", 3, "--stats-dir", stats)
    evaluated, _ = following(works(*words))
    assert evaluated[evaluated.index("--corpus") + 1] == places.get(wanted, wanted)


def test_a_model_larger_than_memory_runs_by_layers_next_and_others_as_before(works, tiny, here):
    hollow_checkpoint(here / "large", LARGE)
    evaluated, written = following(works("plan", "large", *SOME))
    assert "--stream-layers" in evaluated
    assert "--stream-layers" not in written
    evaluated, _ = following(works("plan", tiny, "--criterion", "random", "--remove", 3, "--force"))
    assert "--stream-layers" not in evaluated
    model = load_model_index(str(tiny))
    ways = {
        "--stream-layers": {"stream_layers": True},
        "--stream-layers --experts-at-once 2": {"stream_layers": True, "experts_at_once": 2},
        "--device-map cpu": {"device_map": "cpu"},
    }
    for way, fields in ways.items():
        asked = validated(
            EvaluateRequest, {"model": str(tiny), "corpora": ("red.jsonl",), **fields}
        )
        assert way in evaluate_command(asked, model, {})
    plan = keep_all(model).to_dict()
    asked = validated(RepairRequest, {"model": str(tiny), "plan": plan, "experts_at_once": 2})
    assert "--stream-layers --experts-at-once 2" in evaluate_command(asked, model, {})


def test_a_model_larger_than_memory_whose_layers_do_not_run_alone_is_spread_next(works, here):
    if why := why_too_old(FAMILIES["glm_moe_dsa"]):
        pytest.skip(why)
    joined = {"model_type": "glm_moe_dsa", "n_routed_experts": 8, "first_k_dense_replace": 0}
    hollow_checkpoint(here / "joined", LARGE | joined)
    evaluated, _ = following(works("plan", "joined", *SOME))
    assert "--stream-layers" not in evaluated
    assert evaluated[evaluated.index("--device-map") + 1] == "auto"


def test_of_the_demo_a_corpus_that_neither_plan_nor_repair_read_comes_next(works, here):
    plan = ("plan", "demo", "--criterion", "reap", "--sparsity", "50%")
    every = ("demo-code", "demo-math", "demo-stories")
    (evaluated, _) = following(works(*plan, "--calibrated-on", "demo-code"))
    assert evaluated[evaluated.index("--corpus") + 1] in every[1:]
    words = ("--plan", "plan.json", "--corpus", "demo-math", "--tokens", 512)
    (evaluated,) = following(works("repair", "demo", *words, "--stats-dir", here / "stats"))
    assert evaluated[evaluated.index("--corpus") + 1] == "demo-stories"
    blend = [word for name in every for word in ("--calibrated-on", name)]
    (evaluated, _) = following(works(*plan, *blend, "-o", "blend.json"))
    assert evaluated[evaluated.index("--corpus") + 1] == "demo-recipes"


def test_an_export_that_passes_is_asked_and_one_without_a_tokenizer_is_not(works, here, half):
    plan = ("--criterion", "magnitude", "--remove", 6, "--schedule", "uniform")
    works("plan", "demo", *plan)
    works("export", "demo", "out", "--plan", "plan.json")
    (asked,) = following(works("verify", "out"))
    assert asked[:4] == ["moeprune", "ask", "out", "--prompt"]
    assert "7 * 6 = 42." in works("ask", "demo", *asked[3:])  # it is one that the demo can answer
    assert following(works("verify", half / "half")) == []


def following(printed):
    """The words of the commands that come next."""
    return [shlex.split(line) for line in re.findall(r"next: (.+)", printed)]
