"""Files that people give to commands, most of them wrong in one way."""

import json
from pathlib import Path

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
    "key.yaml": RECIPE.replace("budget", "budgt"),
    "criterion.yaml": RECIPE.replace("reap", "REAP"),
    "corpus.yaml": RECIPE.replace("demo-code", "demo-cod"),
    "schedule.yaml": RECIPE + "schedule: unifrm\n",
    "indent.yaml": "model: demo\n  corpora: [\n",
    "two.yaml": RECIPE.replace("50%", "50%, remove: 3"),
    "none.yaml": RECIPE.partition("budget")[0],
    "place.yaml": RECIPE + "calibrate: {tokens: 64}\n",
    "number.yaml": RECIPE + "tokens: many\n",
    "no-token.jsonl": '{"input_ids": []}\n',
    "far.jsonl": '{"input_ids": [4, 96]}\n',
    "one two.jsonl": '{"input_ids": [4, 5]}\n',
    "prose.txt": "Some text.\n",
    # As a corpus of other statistics is called, in another folder.
    "red.jsonl": '{"input_ids": [4, 5, 6]}\n',
    "search.yaml": RECIPE + "search: {corpus: demo-math}\n",
    "uneven.yaml": RECIPE.replace("50%", "50%, uneven: true"),
    "names.yaml": RECIPE.replace("demo-code", "red.jsonl, ./red.jsonl"),
    "corpora.yaml": RECIPE + "evaluate: {corpora: demo-math}\n",
    "corpora-list.yaml": RECIPE + "evaluate: {corpora: [demo-math]}\n",
    "twice.yaml": RECIPE + "budget: {sparsity: 40%}\n",
    "null.jsonl": '{"text": null}\n',
    "no-criterion.yaml": RECIPE.replace("reap", ""),
    "plan-as-recipe.json": '{"model": {"name": "demo", "identity": ""}, "kept": {}}',
}


def _files_of_the_demo() -> dict[str, str]:
    model = {"name": "demo", "identity": load_model_index("demo").identity}
    half = {"schema_version": 1, "model": model, "kept": {"0": list(range(16))}}
    plans = {
        "half.json": half,
        "list-kept.json": {**half, "kept": [1]},
        "spec.json": {**half, "spec": {"x": 1}},
        "no-expert.json": {**half, "kept": {"2": []}},
    }
    files = {**plans, "judged.json": next(shipped_results())}
    return {name: json.dumps(content) for name, content in files.items()}


def write_wrong_files(folder: Path) -> None:
    """Write all of them into a folder."""
    for name, content in (FILES | _files_of_the_demo()).items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
