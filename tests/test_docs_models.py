"""The page on pruning one's own model: its sizes are computed again, its recipe is read."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from published_models import DEEPSEEK, ERNIE, MIXTRAL, OLMOE, QWEN3

from analysis.calibration.loading import CalibrationSettings, Placement
from analysis.calibration.memory import active_params, memory_needs
from analysis.calibration.streamed import hidden_bytes
from analysis.corpora import PRESETS
from analysis.corpora.sequences import TokenSequences
from pruning.outline import outline_model
from pruning.plan import PruningPlan, model_ref
from pruning.recipe_file import recipe_from_yaml
from pruning.schedules import uniform
from pruning.sizes import size_report

PAGE = (Path(__file__).parent.parent / "docs" / "prune-your-own-model.md").read_text()
GIB = 2**30
CONFIGS = {
    "allenai/OLMoE-1B-7B-0125-Instruct": OLMOE,
    "deepseek-ai/DeepSeek-V2-Lite-Chat": DEEPSEEK,
    "baidu/ERNIE-4.5-21B-A3B-PT": ERNIE,
    "Qwen/Qwen3-30B-A3B-Instruct-2507": QWEN3,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": MIXTRAL,
}


def shown():
    """Model -> numbers of its row, in the units of the page."""
    table = PAGE.partition("<!-- sizes -->")[2].partition("<!-- /sizes -->")[0]
    rows = [line.split("|")[1:-1] for line in table.strip().splitlines()[2:]]
    return {
        name.strip(" `"): [float(re.match(r" *([\d.]+)", cell)[1]) for cell in cells]
        for name, *cells in rows
    }


def half(model):
    """The plan that keeps the first half of each layer's experts."""
    keep = uniform(model.layers, "50%").keep
    kept = {layer.index: tuple(range(n)) for layer, n in zip(model.layers, keep, strict=True)}
    return PruningPlan(model_ref(model), kept)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_sizes_of_the_page_are_those_of_the_configuration(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    model = outline_model(str(tmp_path))
    preset = PRESETS["c4"]
    row = np.zeros(preset.seq_len, dtype=np.int32)
    text = TokenSequences("c4", (row,) * (preset.tokens // preset.seq_len), 1, 0)
    placement = Placement(stream_layers=True, hidden_states_dir=tmp_path)
    settings = CalibrationSettings(preset.seq_len, device="cpu", placement=placement)

    report, needs = size_report(model, half(model)), memory_needs(model, text, settings)
    work = 2 * active_params(model) * text.num_tokens
    sizes = (report.bytes_before, report.bytes_after, needs.whole, needs.streamed)
    gib = [size / GIB for size in (*sizes, hidden_bytes(model, text, settings))]
    assert f"{text.num_tokens:,} tokens in sequences of {preset.seq_len:,}" in PAGE
    wanted = [report.params_before / 1e9, *gib, work / 1e15]
    # As many digits as the page shows.
    assert shown()[name] == [pytest.approx(wanted[0], abs=0.005)] + [
        pytest.approx(number, abs=0.051) for number in wanted[1:]
    ]


def test_the_times_of_the_page_are_work_by_speed():
    work = {name: numbers[-1] * 1e15 for name, numbers in shown().items()}
    small, large = work["allenai/OLMoE-1B-7B-0125-Instruct"], max(work.values())
    for speed, one, other in (
        (0.5e12, "38 minutes", "7 hours"),
        (50e12, "23 seconds", "4 minutes"),
    ):
        assert f"{speed / 1e12:g}e12" in PAGE
        for operations, said in ((small, one), (large, other)):
            number, unit = said.split()
            seconds = {"seconds": 1, "minutes": 60, "hours": 3600}[unit]
            assert operations / speed / seconds == pytest.approx(float(number), rel=0.12)
            assert said in PAGE


def test_the_recipe_of_the_page_is_one():
    (recipe,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.S)
    assert recipe_from_yaml(recipe).model == "Qwen/Qwen3-30B-A3B-Instruct-2507"
