"""The shard index of an export whose tensors keep their names and shapes, and are fewer."""

import json
import shutil

import pytest
from exports import export
from safetensors.torch import load_file, save_file

from analysis.model import load_model_index
from pruning.heads import HeadChoice
from pruning.plan import keep_all

INDEX = "model.safetensors.index.json"


@pytest.fixture
def source(checkpoint, tmp_path):
    """A model of several shards with a prediction head, which has no experts."""
    path = tmp_path / "source"
    shutil.copytree(checkpoint("olmoe").path, path)
    index = json.loads((path / INDEX).read_text())
    for shard in sorted(path.glob("*.safetensors")):
        tensors = load_file(shard)
        head = {
            name.replace("model.layers.2.", "mtp.layers.0."): tensor + 1
            for name, tensor in tensors.items()
            if name.startswith("model.layers.2.") and ".mlp." not in name
        }
        save_file(tensors | head, shard, {"format": "pt"})
        index["weight_map"] |= dict.fromkeys(head, shard.name)
    (path / INDEX).write_text(json.dumps(index))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    return load_model_index(str(path))


def test_a_head_that_is_left_out_is_not_listed(source, tmp_path):
    export(source, keep_all(source), tmp_path / "out", heads=HeadChoice.DROP)
    shards = {file.name: load_file(file) for file in (tmp_path / "out").glob("*.safetensors")}
    written = json.loads((tmp_path / "out" / INDEX).read_text())
    on_disk = {name: shard for shard, tensors in shards.items() for name in tensors}
    assert written["weight_map"] == on_disk
    assert not [name for name in on_disk if name.startswith("mtp.")]
    sizes = (tensor.nbytes for tensors in shards.values() for tensor in tensors.values())
    assert written["metadata"]["total_size"] == sum(sizes)


def test_the_index_stays_byte_for_byte_where_all_stays(source, tmp_path):
    export(source, keep_all(source), tmp_path / "out")
    before = source.checkpoint.path / INDEX
    assert (tmp_path / "out" / INDEX).read_bytes() == before.read_bytes()
