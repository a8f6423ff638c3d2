"""What commands would take, said before anything runs."""

import json
import shutil

import pytest
from exports import tensors_of
from folder_tree import tree
from transformers.utils import logging

from analysis.progress import RATES
from analysis.stats.rates import keep_rates
from families.configs import BY_NAME
from families.tiny_models import tiny_model


@pytest.fixture
def expected(works):
    """The numbers of a command's `--dry-run`."""
    return lambda *words: json.loads(works(*words, "--dry-run", "--json"))["result"]


@pytest.fixture
def rated(here, monkeypatch):
    """Runs have measured this machine: nothing is probed, and equal work takes as long."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    keep_rates(dict.fromkeys(RATES, 1.0))


def size(folder):
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def test_weights_are_read_once(expected, works, tiny, here):
    words = ("weights", tiny, "--stats-dir", here / "own")
    said = expected(*words)
    experts = [tensor for name, tensor in tensors_of(tiny).items() if ".experts." in name]
    assert said["bytes"] == sum(tensor.nbytes for tensor in experts)
    assert said["memory_bytes"] > 60 << 20  # Python alone takes more
    assert said["seconds"] > 0
    assert not (here / "own").exists()
    works(*words)
    assert expected(*words) == {"bytes": 0, "memory_bytes": 0, "seconds": 0}


RECIPE = """
model: {model}
corpora: [{rows}]
criterion: frequency
budget: {{sparsity: 50%}}
tokens: 64
seq_len: 8
search: {{corpus: {held}, samples: 2, population: 4, elites: 1, generations: {generations}}}
"""


@pytest.mark.usefixtures("rated")
def test_a_search_reads_the_model_for_calibration_and_candidates(expected, tiny, corpora, here):
    def said(generations, *way):
        recipe = here / f"{generations}.yaml"
        paths = {"rows": corpora[0], "held": corpora[1]}
        recipe.write_text(RECIPE.format(model=tiny, generations=generations, **paths))
        return expected("search", recipe, "--stats-dir", here / "own", *way)

    short, long = said(2), said(4)
    assert 0.9 * 2 * size(tiny) < short["bytes"] == long["bytes"] <= 2 * size(tiny)
    assert 0 < short["seconds"] < long["seconds"]
    by_layers = [said(generations, "--stream-layers")["bytes"] for generations in (2, 4)]
    trunk = [tensor for name, tensor in tensors_of(tiny).items() if ".layers." in name]
    # Two generations more, each a pass.
    assert by_layers[1] - by_layers[0] == 2 * sum(tensor.nbytes for tensor in trunk)
    assert not (here / "own").exists()
    assert not list(here.glob("*.search"))


def test_a_verification_reads_the_export_and_what_its_level_needs(expected, works, tiny, here):
    works("plan", tiny, "--criterion", "random", "--sparsity", "50%", "-o", "plan.json")
    works("export", tiny, "out", "--plan", "plan.json", "--no-verify")
    out, source = size(here / "out"), ("--source", tiny)
    for level, given, needed in (
        ("bytes", (), out),
        ("load", (), 2 * out),
        ("bytes", source, 2 * out),  # as many bytes of the source
        ("logits", (*source, "--stream-layers"), 4 * out + size(tiny)),
    ):
        said = expected("verify", "out", "--level", level, *given)
        # Headers are no weights.
        assert said["bytes"] == pytest.approx(needed, rel=0.15)
        assert (said["level"], said["seconds"] > 0) == (level, True)


@pytest.mark.parametrize("way", [(), ("--stream-layers",)], ids=["whole", "by-layers"])
@pytest.mark.parametrize("command", ["sensitivity", "evaluate"])
def test_what_is_measured_is_stated_before_and_then_known(
    expected, works, tiny, corpora, here, command, way
):
    place = ("--stats-dir", here / "own")
    held = ("--corpus", corpora[1], "--samples", "2", "--seq-len", "8")
    if command == "sensitivity":
        words = (command, tiny, "--criterion", "random", "--levels", "2", *held, *way, *place)
    else:
        works("plan", tiny, "--criterion", "random", "--sparsity", "50%", "-o", here / "plan.json")
        words = (command, tiny, "--plan", here / "plan.json", *held, *way, *place)
    said = expected(*words)
    assert said["bytes"] == pytest.approx(size(tiny), rel=0.3)
    assert said["seconds"] > 0
    assert said["memory_bytes"] > 60 << 20
    assert not (here / "own").exists()
    logging.enable_progress_bar()
    works(*words)
    assert not logging.is_progress_bar_enabled()  # logs have the program's lines alone
    (here / "result.json").unlink(missing_ok=True)
    # Numbers in the table whose record is gone: a run would write it again, this one does not.
    for record in (here / "own").rglob(f"{command[:4]}*/*.json"):
        record.unlink()
    before = tree(here)
    assert expected(*words) == {"bytes": 0, "memory_bytes": 0, "seconds": 0}
    assert tree(here) == before


def test_what_would_not_stream_is_refused_before_it_is_stated(refused, here):
    """A model whose layers hand on more than hidden states."""
    model, rows = here / "joined", here / "rows.jsonl"
    rows.write_text("".join(f'{{"input_ids": {list(range(n, n + 20))}}}\n' for n in range(3, 40)))
    held = ("--corpus", rows, "--samples", "2", "--seq-len", "8")
    tiny_model(BY_NAME["glm_moe_dsa"]).save_pretrained(model)
    recipe = here / "recipe.yaml"
    recipe.write_text(RECIPE.format(model=model, rows=rows, held=rows, generations=2))
    for words in (
        ("calibrate", model, "--corpus", rows),
        ("evaluate", model, *held),
        ("sensitivity", model, "--criterion", "random", *held),
        ("search", recipe),
    ):
        for how in (("--dry-run",), ()):
            said = refused(*words, "--stream-layers", "--stats-dir", here / "own", *how)
            assert "GLM-5 cannot be streamed layer by layer: a layer hands on more than" in said
    assert not (here / "own").exists()


def test_blocks_in_a_dtype_without_products_are_refused_as_by_the_run(
    refused, moeprune, works, tiny, corpora, here
):
    works("plan", tiny, "--criterion", "random", "--sparsity", "50%", "-o", here / "plan.json")
    recipe = here / "recipe.yaml"
    raw = RECIPE.format(model=tiny, rows=corpora[0], held=corpora[1], generations=2)
    recipe.write_text(raw + "dtype: float64\n")
    held = ("--corpus", corpora[1], "--samples", "2", "--seq-len", "8", "--dtype", "float64")
    for words in (
        ("evaluate", tiny, "--plan", here / "plan.json", *held),
        ("sweep", tiny, "--criterion", "random", "--sparsity", "50%", *held),
        ("sensitivity", tiny, "--criterion", "random", "--levels", "2", *held),
        ("search", recipe),
    ):
        words += ("--stream-layers", "--experts-at-once", "1", "--stats-dir", here / "own")
        said = refused(*words, "--dry-run")
        assert "Experts cannot run in blocks in float64" in said
        assert not (here / "own").exists()
        ran = moeprune(*words)
        assert (ran.code, ran.err.splitlines()[-1]) == (1, said.strip())
        shutil.rmtree(here / "own", ignore_errors=True)
