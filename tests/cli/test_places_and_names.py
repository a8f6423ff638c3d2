"""Names and places that are slightly wrong: the nearest right one is named, or what works."""

import shlex

import pytest

RECIPE = "model: demo\ncorpora: [demo-code]\ncriterion: reap\nbudget: {sparsity: 50%}\n"
FILES = {
    "plan.json": "{}",
    "notes.csv": "",
    "recipe.yaml": RECIPE,
    "cats.jsonl": '{"text": "cats"}\n',
    "wide.jsonl": '{"text": "a"}\n'.encode("utf-16"),
    "zipped.jsonl": b"\x1f\x8b\x08\x00abc",
    "cut.parquet": b"PAR1 and no more",
    "device.yaml": RECIPE + "device: cpu\n",
    "stats.yaml": RECIPE + "stats_dir: x\n",
    "samples.yaml": RECIPE + "samples: 3\n",
    "yes.yaml": RECIPE.replace("50%", "yes"),
    "nested.yaml": RECIPE.replace("50%", "{value: 50%}"),
    "size.yaml": RECIPE.replace("sparsity: 50%", "target_size: on"),
    "date.yaml": RECIPE + "revision: 2024-01-01\n",
    "mapping.yaml": RECIPE.replace("[demo-code]", "{a: 1}"),
    "pins.yaml": RECIPE + "limits: {pin: [0, 1]}\n",
    "counts.yaml": RECIPE + "limits: {set: [0]}\n",
    "losss.yaml": RECIPE + "evaluate: {corpus: demo-math, fitness: [losss]}\n",
    "model.json": '{"schema_version": 1, "model": "demo", "kept": {"0": [1, 2, 3, 4]}}',
}
PLAN = "plan demo --criterion reap --calibrated-on demo-code --sparsity 50%"
MISTAKES = {
    # Files that are not there
    "export demo out --plan plam.json": ["No such file or directory. Did you mean 'plan.json'?"],
    "plans diff plann.json plan.json": ["Did you mean 'plan.json'?"],
    "plans show {here}/plam.json": ["Did you mean '{here}/plan.json'?"],
    "prune recipe.yml": ["Did you mean 'recipe.yaml'?"],
    "calibrate demo --corpus cat.jsonl": ["cat.jsonl does not exist. Did you mean 'cats.jsonl'?"],
    f"{PLAN.replace('--sparsity 50%', '--schedule-file note.csv')}": ["mean 'notes.csv'?"],
    # Files and folders that are something else
    "calibrate demo --corpus https://x.org/a.jsonl": ["https://x.org/a.jsonl is a URL; download"],
    "calibrate demo --corpus c4=https://x.org/a": ["c4=https://x.org/a is a URL; download"],
    "calibrate demo --corpus folder": ["folder is a folder; a corpus is a file that ends in .txt"],
    "calibrate demo --corpus {tiny}": ["is a model; a corpus is a file that ends in .txt"],
    "calibrate demo --corpus wide.jsonl": ["wide.jsonl is UTF-16 text; save it as UTF-8"],
    "calibrate demo --corpus zipped.jsonl": ["line 1 is not JSON: it is not UTF-8 text (byte 1)"],
    "plans show model.json": ["model.json: The plan is malformed in its model"],
    f"{PLAN} -o plan.json/new.json": ["cannot be written", "plan.json is a file); name another"],
    "report demo -o report.txt": ["report.txt has no known ending; use .html or .htm"],
    # Empty words
    'export demo "" --plan plan.json': ["OUT: it is empty; name a file or a folder"],
    'export demo out --plan ""': ["--plan: it is empty; name a file or a folder"],
    'plot kept-by demo -o ""': ["--out / -o: it is empty; name a file or a folder"],
    'weights demo --stats-dir ""': ["--stats-dir: it is empty; name a file or a folder"],
    # Names
    "plot NOSUCHVIEW demo": ["Unknown view 'NOSUCHVIEW'. `moeprune plot --list` lists all."],
    "evaluate demo --corpus demo-code --measure losss": ["Did you mean 'nll'?"],
    "evaluate demo --corpus demo-code --measure perplexity": ["Did you mean 'ppl'?"],
    "calibrate demo --corpus demo-code --dtype fp16": ["Did you mean 'float16'?"],
    f"{PLAN} --protect 0-9999999": ["larger than the number of layers can be"],
    "plan demo --criterion reap --sparsity 50% --calibrated-on demo-code:1e999": ["and finite"],
    # Recipes
    "prune device.yaml": ["line 5: device: ", "under calibrate, or is the option --device of"],
    "prune stats.yaml": ["line 5: stats_dir: ", "it is the option --stats-dir of the command"],
    "prune samples.yaml": ["it stands under search or sensitivity or evaluate"],
    "prune yes.yaml": ["budget.sparsity: give a number or a percentage, such as 0.5 or 50% (got T"],
    "prune nested.yaml": ["budget.sparsity: give a number or a percentage, such as 0.5 or 50%."],
    "prune size.yaml": ["budget.target_size: give a number of GiB, or a size such as 30GiB"],
    "prune date.yaml": ["revision: give a text, in quotes if need be (got a date)"],
    "prune mapping.yaml": ["corpora: give a list (got keys with values)"],
    "prune pins.yaml": ["limits.pin: '0' names no experts; write LAYER:EXPERTS, such as 3:5,7-9"],
    "prune counts.yaml": ["limits.set: '0' sets no layer; write LAYER=KEPT, such as 3=20"],
    "prune losss.yaml": ["evaluate.fitness.0: choose 'esap'", "Did you mean 'nll'?"],
}


@pytest.fixture
def files(here):
    for name, content in FILES.items():
        (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (here / "folder").mkdir()
    return here


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_gets_one_line_that_says_what_works(refused, files, words, tiny):
    places = {"tiny": tiny, "here": files}
    message = refused(*shlex.split(words.format(**places)), codes=(1, 2))
    for part in MISTAKES[words]:
        assert part.replace("{here}", str(files)) in message


def test_a_reason_ends_in_one_full_stop(refused, files):
    assert not refused("calibrate", "demo", "--corpus", "cut.parquet").endswith("..\n")


@pytest.mark.parametrize("name", ["STATS_DIR", "STATE_DIR", "EXPORT_ROOT", "MODELS_ROOT"])
@pytest.mark.parametrize("words", ["jobs list", "demo"])
@pytest.mark.parametrize("path", ["plan.json", "plan.json/below"])
def test_a_variable_that_names_a_file_is_refused(refused, files, monkeypatch, name, words, path):
    monkeypatch.setenv(f"MOEPRUNE_{name}", path)
    message = refused(*words.split())
    assert f"MOEPRUNE_{name}: " in message
    assert "plan.json is a file; name a folder, or unset the variable." in message


def test_folders_of_the_dashboard_are_there_or_can_be_made(refused, files, monkeypatch):
    assert "plan.json is a file; name" in refused("app", "--export-root", "plan.json")
    monkeypatch.delenv("MOEPRUNE_EXPORT_ROOT")
    (files / "exports").touch()  # the usual folder
    assert f"--export-root: {files}/exports is a file" in refused("app")
    (files / "exports").unlink()
    monkeypatch.setenv("MOEPRUNE_MODELS_ROOT", "nowhere")
    assert "MOEPRUNE_MODELS_ROOT: nowhere is not a directory" in refused("app")


def test_a_place_that_takes_no_file_is_refused_before_any_work(refused, files, monkeypatch):
    monkeypatch.setattr("app.cli.files.unwritable", lambda folder: "Read-only file system")
    message = refused(*PLAN.split(), "-o", "new.json")
    assert "new.json cannot be written (Read-only file system); name another file" in message
