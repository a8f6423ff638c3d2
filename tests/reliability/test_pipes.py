"""Pipes and devices in the place of files: none is opened, since it may never end."""

import os
import shutil
from pathlib import Path

import pytest

from analysis.checkpoint.index import CONFIG_NAME, INDEX_NAME
from analysis.checkpoint.opening import open_checkpoint
from analysis.corpora.spec import corpus_name
from analysis.corpora.streams import open_corpus
from analysis.errors import UserError
from analysis.files.shipped import SHIPPED_STATS
from analysis.model.opening import load_model_index, resolve_model
from analysis.stats.manifest import EXPERTS, MANIFEST, VECTORS
from analysis.stats.reading import load_expert_stats, read_vectors
from analysis.stats.store import read_run
from analysis.stats.stored_tables import read_parquet
from pruning.plan.keep_list import read_keep_list
from pruning.plan.plan import KEEP_LIST_NAME
from pruning.plan.plan_file import load_plan
from pruning.records.evaluation import EvaluationRecord
from pruning.requests.recipe_file import load_recipe
from pruning.schedules.counts import read_counts
from pruning.search.store import load_search, search_in
from pruning.surgery.manifest import MANIFEST_NAME, read_manifest

READERS = {
    "plan.json": load_plan,
    "recipe.yaml": load_recipe,
    "schedule.csv": lambda path: read_counts(path, load_model_index("demo").layers),
    KEEP_LIST_NAME: lambda path: read_keep_list(path, load_model_index("demo").layers),
    "search.json": load_search,
    "record.json": EvaluationRecord.read,
    "table.parquet": lambda path: read_parquet(path, {}),
    "corpus.jsonl": lambda path: open_corpus(str(path)),
    "named.jsonl": lambda path: corpus_name(str(path)),
    CONFIG_NAME: lambda path: open_checkpoint(path.parent),
    INDEX_NAME: lambda path: open_checkpoint(path.parent),
    MANIFEST: lambda path: read_run(path.parent),
    EXPERTS: lambda path: load_expert_stats(read_run(path.parent)),
    VECTORS: lambda path: read_vectors(read_run(path.parent)),
    MANIFEST_NAME: lambda path: read_manifest(path.parent),
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_no_pipe_or_device_is_read(tmp_path, name, kind):
    folder = tmp_path / "folder"
    if name in (MANIFEST, EXPERTS, VECTORS):
        shutil.copytree(next(SHIPPED_STATS.glob("demo-demo-math-*")), folder)
    elif name == INDEX_NAME:
        shutil.copytree(resolve_model("demo"), folder)
        for shard in folder.glob("*.safetensors"):
            shard.unlink()
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(Path("/dev/zero"))
    with pytest.raises((UserError, OSError)) as refusal:
        READERS[name](path)
    assert isinstance(refusal.value, UserError) or "no regular file" in str(refusal.value)


def test_a_search_that_is_a_pipe_is_no_search(tmp_path):
    os.mkfifo(tmp_path / "search.json")
    assert search_in(tmp_path / "search.json") is None
