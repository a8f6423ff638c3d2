"""Corpora of commands: copies, packing, representatives, answers of the model itself."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.corpora.spec import corpus_name
from analysis.drain import drain
from analysis.errors import CorpusError
from builders import tiny_checkpoint
from pruning.requests.calibration import CalibrateRequest
from pruning.requests.recipe import Recipe
from pruning.tasks.calibration import calibrate_run


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    """`datasets` waits five seconds at the end of a parquet file for its reader's threads."""
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)


@pytest.fixture
def pairs(tmp_path):
    rows = [
        {"instruction": f"How many cats are {n} cats?", "output": f"They are {n} cats."}
        for n in range(40)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    return tmp_path / "pairs.parquet"


def manifest_of(folder):
    (manifest,) = folder.glob("*/manifest.json")
    return json.loads(manifest.read_text())


def facts_of(said):
    lines = (line.split(None, 1) for line in said.splitlines() if "  " in line)
    return {name: value.strip() for name, value in lines}


SAMPLE = ("--tokens", 512, "--seq-len", 64, "--packing", "pack", "--count", "response")
CHOSEN = ("--select", "kmeans", "--clusters", 5)


def test_answers_of_representative_documents_of_a_copy(works, pairs, here):
    command = ("calibrate", "demo", "--corpus", f"evol-codealpaca={pairs}", *SAMPLE, *CHOSEN)
    foreseen = facts_of(works(*command, "--dry-run"))
    assert not (here / "kept").exists()
    works(*command, "--stats-dir", "kept")
    manifest = manifest_of(here / "kept")
    (corpus,) = manifest["corpora"]
    assert corpus["name"] == corpus_name(f"evol-codealpaca={pairs}")
    assert corpus["num_documents"] == 5
    assert 0 < corpus["num_counted"] < corpus["num_tokens"] < 512
    prepared = corpus["prepared"]
    assert (prepared["packing"], prepared["count"]) == ("pack", "response")
    assert prepared["select"] == "kmeans, 5 clusters of at most 4096 documents"
    assert prepared["source"] == {"copy": "pairs.parquet", "files": 1, "shuffle_buffer": 10_000}
    # What was foreseen is what was fed.
    for name in ("documents", "sequences", "tokens", "counted", "padded"):
        assert int(foreseen[name].replace(",", "")) == corpus[f"num_{name}"]
    assert str(pairs.parent) not in json.dumps(manifest)


def test_the_copy_of_a_data_set_is_known_by_its_name(works, pairs, here):
    corpus = f"evol-codealpaca={pairs}"
    works("calibrate", "demo", "--corpus", corpus, *SAMPLE, "--stats-dir", "kept")
    kept = []
    for name in ("evol-codealpaca", corpus, "evol-codealpaca:2"):
        works(
            *("plan", "demo", "--criterion", "man", "--calibrated-on", name),
            *("--sparsity", "50%", "--stats-dir", "kept", "-o", "plan.json"),
        )
        kept.append(json.loads((here / "plan.json").read_text())["kept"])
    assert kept[0] == kept[1] == kept[2]


def test_a_corpus_named_twice_is_one_run(works, here):
    (here / "ids.jsonl").write_text('{"input_ids": [5, 6, 7]}\n')
    said = works("calibrate", "demo", *("--corpus", "ids.jsonl") * 2, "--stats-dir", "kept")
    assert said.count("3 tokens of ids.jsonl") == 1


def test_rows_of_token_ids_are_cut_only_where_it_was_asked_for(works, here):
    rows = [{"input_ids": [row + 3] * 300} for row in range(3)]
    (here / "ids.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command, name = ("calibrate", "demo", "--corpus", "ids.jsonl"), corpus_name("ids.jsonl")
    said = works(*command, "--stats-dir", "whole")
    assert f": 900 tokens of {name}, " in said
    manifest = manifest_of(here / "whole")
    assert manifest["settings"]["seq_len"] == 300
    assert manifest["corpora"][0]["prepared"]["truncate"] == "none"
    for options, tokens in ((("--truncate", "tail"), 3 * 256), (("--seq-len", 100), 300)):
        said = works(*command, *options, "--stats-dir", options[0])
        assert f": {tokens} tokens of {name} ({900 - tokens} read and dropped), " in said


ROWS = [
    {"input_ids": [5, 6, 7, 8, 9], "labels": [-100, -100, -100, 8, 9]},
    {"input_ids": [10, 11, 12, 13], "labels": [-100, -100, 12, 13]},
]
COMMON = ("--corpus", "rows.jsonl", "--tokens", "64", "--stats-dir", "stats", "--dtype", "float64")
OWN = ("--answers", "own", "--answer-tokens", "3")


@pytest.fixture
def model(here):
    tiny_checkpoint(here / "model", "olmoe")
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return "model"


def test_own_answers_make_a_run_of_their_own(works, model, here):
    works("calibrate", model, *COMMON, "--count", "response")
    works("calibrate", model, *COMMON, *OWN, "--count", "response")
    works("calibrate", model, *COMMON, *OWN)
    made = [json.loads(path.read_text()) for path in (here / "stats").glob("*/manifest.json")]
    assert len({manifest["digest"] for manifest in made}) == 3
    own = [
        manifest["corpora"][0]
        for manifest in made
        if "answers" in manifest["corpora"][0]["prepared"]
    ]
    assert [corpus["prepared"]["answers"]["max_new_tokens"] for corpus in own] == [3, 3]
    # Prompts of 3 and 2 tokens, answers of 3; the response alone, or all.
    assert {corpus["num_tokens"] for corpus in own} == {11}
    assert sorted(corpus["num_counted"] for corpus in own) == [6, 11]
    listed = works("runs", "list", "--stats-dir", "stats").splitlines()
    mine = [line.split("│") for line in listed if line.startswith("model-rows")]
    assert sorted(cells[-2].strip() for cells in mine) == ["given", "own", "own"]
    # Greedy: the same again, so the cache has it.
    assert "stats" in works("calibrate", model, *COMMON, *OWN)
    assert len(list((here / "stats").glob("*/manifest.json"))) == 3


def test_a_dry_run_writes_no_answers(works, model, here):
    said = works("calibrate", model, *COMMON, *OWN, "--dry-run")
    assert "nothing was run" in said
    assert not (here / "stats").exists()


NO_ANSWERS = "has token ids without labels, so its responses are unknown; --answers own needs"


def test_a_corpus_without_answers_is_refused_before_the_model_is_loaded(model, here):
    (here / "bare.jsonl").write_text(json.dumps({"input_ids": [5, 6, 7, 8]}) + "\n")
    request = CalibrateRequest(model=model, corpus="bare.jsonl", answers="own", stats_dir="stats")
    task = calibrate_run(request)
    assert next(task).phase == "reading the corpus"
    for weights in (here / model).glob("*.safetensors"):
        weights.unlink()  # its index is read, so whoever loads the model now fails
    with pytest.raises(CorpusError, match=NO_ANSWERS):
        drain(task)


def test_recipes_have_the_key_and_keep_their_digests():
    plain = {
        "model": "demo",
        "corpora": ["demo-math"],
        "criterion": "reap",
        "budget": {"sparsity": "50%"},
    }
    given, own = (
        Recipe.model_validate({**plain, "calibrate": {"answers": answers}})
        for answers in ("given", "own")
    )
    assert given.digest == Recipe.model_validate(plain).digest
    assert own.digest != given.digest
