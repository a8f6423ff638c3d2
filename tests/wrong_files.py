"""Files that people give to commands, most of them wrong in one way."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml
from shipped import shipped_results

from analysis.model.opening import load_model_index

RECIPE = "model: demo\ncorpora: [demo-code]\ncriterion: reap\nbudget: {sparsity: 50%}\n"
FILES = {
    "text.json": "this is no JSON",
    "list.json": "[1, 2]",
    "settings.json": '{"architectures": [], "model_type": "olmoe", "dtype": "x", "top": 1}',
    "old.json": '{"schema_version": 0}',
    "bad.jsonl": '{"text": "a"}\n{"text": \n',
    "fields.jsonl": '{"txt": "a"}\n',
    "empty.jsonl": "",
    "corpus.docx": "",
    "latin.txt": b"caf\xe9\n\n",
    "bad.parquet": b"nope",
    "counts.csv": "layer,kept\n0,99\n",
    "columns.csv": "hello\n",
    "recipe.yaml": RECIPE,
    "no-criterion.yaml": RECIPE.replace("reap", ""),
    "code.yaml": "model: !!python/object/apply:os.getcwd []\n",
    "alias.yaml": "model: &a demo\nrevision: *a\n",
    "keys.yaml": "? [a, b]\n: c\n",
    "deep.yaml": "model: " + "[" * 5000,
    "page.html": "",
    "bare.jsonl": '{"input_ids": [5, 6, 7, 8]}\n',
    "indent.yaml": "model: demo\n  corpora: [\n",
    "no-token.jsonl": '{"input_ids": []}\n',
    "far.jsonl": '{"input_ids": [4, 5]}\n{"input_ids": [4, 96]}\n',
    "one two.jsonl": '{"input_ids": [4, 5]}\n',
    "prose.txt": "Some text.\n",
    # As a corpus of other statistics is called, in another folder.
    "red.jsonl": '{"input_ids": [4, 5, 6]}\n',
    "twice.yaml": RECIPE + "budget: {sparsity: 40%}\n",
    "null.jsonl": '{"text": null}\n',
    "cats.jsonl": '{"text": "cats"}\n',
    "wide.jsonl": '{"text": "a"}\n'.encode("utf-16"),
    "zipped.jsonl": b"\x1f\x8b\x08\x00abc",
    "cut.parquet": b"PAR1 and no more",
    "short.txt": "A short text.\n\nAnd another.\n",
    "notes.csv": "",
    "empty.json": "{}",
    "open.yaml": "model: [x",
    "model.json": '{"schema_version": 1, "model": "demo", "kept": {"0": [1, 2, 3, 4]}}',
    "plan-as-recipe.json": '{"model": {"name": "demo", "identity": ""}, "kept": {}}',
}


@cache
def _files_of_the_demo() -> dict[str, str]:
    model = {"name": "demo", "identity": load_model_index("demo").identity}
    half = {"schema_version": 1, "model": model, "kept": {"0": list(range(16))}}
    plans = {
        "half.json": half,
        "list-kept.json": {**half, "kept": [1]},
        "spec.json": {**half, "spec": {"x": 1}},
        "no-model.json": {**half, "model": {}},
        "text-corpora.json": {**half, "corpora": "code"},
        "away.json": {**half, "model": {"name": "other", "identity": "cd" * 32}},
        "next.json": {**half, "schema_version": 2},
        "no-expert.json": {**half, "kept": {"2": []}},
    }
    files = {**plans, "judged.json": next(shipped_results())}
    return {name: json.dumps(content) for name, content in files.items()}


def write_recipe(folder: Path, changes: Mapping[str, object]) -> None:
    """Write a recipe for the demo into r.yaml with these keys changed; None leaves one out."""
    keys = {**yaml.safe_load(RECIPE), **changes}
    left = {key: value for key, value in keys.items() if value is not None}
    (folder / "r.yaml").write_text(yaml.safe_dump(left, sort_keys=False))


def write_wrong_files(folder: Path) -> None:
    """Write all of them into a folder, and an empty folder `folder`."""
    (folder / "folder").mkdir()
    for name, content in (FILES | _files_of_the_demo()).items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
