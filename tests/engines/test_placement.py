"""A placement in llama.cpp: the tensors that it names are overridden, and tokens stay the same.

Without a GPU the device and the host are one, so this tells what the pattern matches and that it
changes no result, and nothing of speed or of memory.
"""

import re

import pytest
from engines.asking import ask_engine
from engines.checkpoints import engine_case, save

from pruning import Model
from pruning.serving.placement import override_tensor
from tools.engines.environments import python_of

OVERRIDDEN = re.compile(r"tensor (\S+) \(.*\) buffer type overridden to CPU")


@pytest.mark.engines
def test_llama_cpp_overrides_the_layers_that_are_named(tmp_path):
    if python_of("llama.cpp") is None:
        pytest.skip("no environment of llama.cpp: python -m tools.engines llama.cpp")
    folder = tmp_path / "model"
    save(engine_case("qwen3_moe"), folder)
    model = Model(str(folder), stats_dir=tmp_path / "stats")
    # Room for the experts of all layers but one.
    full = model.run("placement", criterion="aimer", budget="1GiB").by_layer
    budget = f"{(full.device_bytes - full.layers[0].device_bytes) / 1024}KiB"
    placement = model.run("placement", criterion="aimer", budget=budget).by_layer
    (layer,) = placement.host_layers
    assert layer == full.layers[0].layer
    pattern = override_tensor(placement.host_layers)
    _, (plain,) = ask_engine("llama.cpp", [folder], tmp_path)
    assert not OVERRIDDEN.search((tmp_path / "answers.log").read_text(errors="replace"))
    _, (placed,) = ask_engine("llama.cpp", [folder], tmp_path, override_tensor=pattern)
    log = (tmp_path / "answers.log").read_text(errors="replace")
    expected = {f"blk.{layer}.ffn_{part}_exps.weight" for part in ("gate", "up", "down")}
    assert set(OVERRIDDEN.findall(log)) == expected
    assert "failed" not in plain
    assert placed["continuations"] == plain["continuations"]
