"""Models of the hub: fetched where it answers, one line within seconds where it does not."""

import socket
from contextlib import closing
from pathlib import Path

import pytest
from calibrations import describe
from exports import tensors_of
from hub_server import FILES, hub, printed
from safetensors.torch import save_file

from analysis.model.opening import load_model_index
from builders import tiny_checkpoint

PROGRAM = (
    "import sys\n"
    "from analysis.errors import UserError\n"
    "from analysis.model.opening import config_folder, resolve_model\n"
    "for find in (resolve_model, config_folder):\n"
    "    try:\n        print(find(sys.argv[1]))\n"
    "    except UserError as error:\n        print(error)\n"
)


@pytest.fixture
def ask(tmp_path):
    """The lines that finding a model, and its configuration, prints in a process of its own."""

    def asked(model, program=PROGRAM, **network):
        return printed(program, model, home=tmp_path / "hub", seconds=60, **network).splitlines()

    return asked


def closed_port():
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_a_hub_that_never_answers_is_asked_once_and_not_for_long(ask):
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place = f"http://127.0.0.1:{silent.getsockname()[1]}"
        lines = ask("some-org/some-model", HF_ENDPOINT=place, HF_HUB_ETAG_TIMEOUT="1")
        assert all("does not answer within 1 s (timed out)" in line for line in lines)
        silent.setblocking(False)
        asked = 0
        while True:
            try:
                silent.accept()[0].close()
            except BlockingIOError:
                break
            asked += 1
        assert asked == 2  # once for the model, once for its configuration


def test_without_a_network_a_model_is_refused_in_one_line_until_it_was_fetched(ask):
    nowhere = f"http://127.0.0.1:{closed_port()}"
    for line in ask("someone/cats", HF_ENDPOINT=nowhere):
        assert line.startswith(f"someone/cats is not a local directory, and {nowhere} does")
        assert "give the folder of a checkpoint" in line
    with hub() as place:
        found = ask("someone/cats", HF_ENDPOINT=place)
        (folder,) = set(found)
        assert Path(folder, "config.json").read_bytes() == FILES["config.json"]
        for missing in ask("someone/gone", HF_ENDPOINT=place):
            assert "the hub has no such model that you may read" in missing
        for gated in ask("someone/gated", HF_ENDPOINT=place):
            assert gated.startswith("someone/gated is gated: accept its terms on the hub")
    assert ask("someone/cats", HF_ENDPOINT=nowhere) == found
    assert ask("someone/cats", HF_HUB_OFFLINE="1") == found


def test_the_same_weights_in_another_format_are_not_fetched(ask):
    # gpt-oss has `original`, Mistral's models `consolidated`: as large as what is read.
    copies = ("original/model.safetensors", "consolidated.safetensors")
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    files = {**FILES, **dict.fromkeys((*copies, *shards), b"weights")}
    with hub(files) as place:
        (folder,) = set(ask("someone/cats", HF_ENDPOINT=place))
    assert {path.name for path in Path(folder).rglob("*.safetensors")} == set(shards)


OUTLINE = (
    "import sys\n"
    "from analysis.model.hub_outline import hub_outline\n"
    "model = hub_outline(sys.argv[1])\n"
    "print(model and (model.checkpoint.nbytes, model.num_params, len(model.checkpoint.shards)))\n"
    "print(model and (model.checkpoint.basis, 'torch' in sys.modules))\n"
)


def outlined(ask, here, files):
    """An outline has the numbers of the checkpoint; how it was made."""
    with hub(files) as place:
        sizes, how = ask("someone/cats", HF_ENDPOINT=place, program=OUTLINE)
    checkpoint = here.checkpoint
    assert sizes == str((checkpoint.nbytes, here.num_params, len(checkpoint.shards)))
    return how


def bytes_of(*folders):
    return {path.name: path.read_bytes() for folder in folders for path in folder.iterdir()}


def test_headers_of_a_hub_model_are_enough(ask, tmp_path):
    here = describe(tmp_path / "tiny", "qwen3_moe")
    how = outlined(ask, here, bytes_of(tmp_path / "tiny"))
    assert how == "('the headers on the hub', False)"
    assert not list((tmp_path / "hub").rglob("*.safetensors"))
    with hub() as place:  # no safetensors there
        assert ask("someone/cats", HF_ENDPOINT=place, program=OUTLINE) == ["None", "None"]


def test_heads_beside_the_index_of_a_hub_model_are_counted(ask, tmp_path):
    folder = tmp_path / "tiny"
    tiny_checkpoint(folder, "qwen3_moe")
    tensors = tensors_of(folder)
    head = {
        name.replace("model.layers.3.", "model.layers.4."): tensor
        for name, tensor in tensors.items()
        if name.startswith("model.layers.3.")
    }
    save_file(head, folder / "mtp.safetensors")
    here = load_model_index(str(folder))
    outlined(ask, here, bytes_of(folder) | {"consolidated.safetensors": b"weights"})
    assert here.checkpoint.nbytes > sum(tensor.nbytes for tensor in tensors.values())


def test_two_models_of_one_hub_id_are_refused(ask, tmp_path):
    tiny_checkpoint(tmp_path / "two", "qwen3_moe")
    tiny_checkpoint(tmp_path / "one", "qwen3_moe", shards=1)
    files = bytes_of(tmp_path / "two", tmp_path / "one")
    program = PROGRAM.replace("(resolve_model, config_folder)", "(hub_outline,)").replace(
        "from analysis.model.opening import config_folder, resolve_model",
        "from analysis.model.hub_outline import hub_outline",
    )
    with hub(files) as place:
        (line,) = ask("someone/cats", HF_ENDPOINT=place, program=program)
    assert line.startswith("someone/cats holds two models: model.safetensors")
