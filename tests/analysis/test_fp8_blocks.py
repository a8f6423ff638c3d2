"""FP8 whose last blocks are cut: the same numbers as of the matrices that it stands for."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from analysis.calibration.blocks import layer_sizes
from analysis.calibration.loading import CalibrationSettings
from analysis.calibration.weights import measure_weights
from analysis.checkpoint.fp8 import block_shape
from analysis.drain import drain
from analysis.model.loadable import cut_blocks
from analysis.model.opening import load_model_index
from analysis.nonuniform.fp8_loading import take_cut_blocks
from analysis.nonuniform.loading import load_pruned
from analysis.numbers.elements import fp8_values
from builders.fp8 import write_fp8_pair
from pruning.plan.plan import PruningPlan, model_ref
from pruning.surgery.export import export_checkpoint


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_fp8_pair(tmp_path_factory.mktemp("blocks"))


def test_a_layer_is_expected_to_take_more_while_it_is_dequantised(pair):
    assert cut_blocks(load_model_index(str(pair[0])))
    settings = CalibrationSettings(8, dtype="bfloat16")
    fp8, plain = (layer_sizes(load_model_index(str(path)), settings) for path in pair)
    assert fp8.around == plain.around
    assert fp8.expert == int(1.7 * plain.expert)
    assert fp8.whole == pytest.approx(plain.whole + 0.7 * 7 * plain.expert, abs=1)


def test_weights_are_those_of_the_plain_ones(pair):
    first, second = (drain(measure_weights(load_model_index(str(path)))) for path in pair)
    keys = ["layer", "expert", "projection", "numel"]
    assert first[keys].equals(second[keys])
    for column in ("l1", "l2_squared"):
        np.testing.assert_allclose(first[column], second[column], rtol=1e-12)


def test_an_export_keeps_bytes_and_gives_the_logits_of_the_plain_one(pair, tmp_path):
    ids = torch.arange(12).reshape(2, 6)
    logits = []
    for number, path in enumerate(pair):
        described, out = load_model_index(str(path)), tmp_path / str(number)
        kept = {layer.index: (0, 2, 5) for layer in described.layers}
        drain(export_checkpoint(described, PruningPlan(model_ref(described), kept), out))
        with torch.no_grad():
            logits.append(load_pruned(out, dtype=torch.float32)(ids, use_cache=False).logits)
    assert torch.equal(*logits)
    name = "model.layers.1.mlp.experts.{}.up_proj.weight{}"
    before, after = (
        load_file(folder / "model.safetensors") for folder in (pair[0], tmp_path / "0")
    )
    for role in ("", "_scale_inv"):
        old, new = before[name.format(5, role)], after[name.format(2, role)]
        assert torch.equal(old.view(torch.uint8), new.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [192, 200])
def test_blocks_are_the_stated_ones_whatever_dtype_transformers_reads_the_bytes_in(rows, dtype):
    """Older ones cast them first. 192 divides into two even blocks, which are not the stated."""
    take_cut_blocks()
    quantizer = SimpleNamespace(
        quantization_config=FineGrainedFP8Config(weight_block_size=(128, 4))
    )
    codes = torch.full((rows, 4), 0.5).to(torch.float8_e4m3fn).to(dtype)
    scales = torch.tensor([[2.0], [6.0]])
    found = Fp8Dequantize(quantizer)._dequantize_one(codes, scales, output_dtype=torch.float32)
    assert torch.equal(
        found, torch.tensor([1.0] * 128 + [3.0] * (rows - 128))[:, None].expand(-1, 4)
    )


def test_bytes_are_decoded_as_torch_decodes_them():
    codes = np.arange(256, dtype=np.uint8)
    wanted = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(fp8_values(codes), wanted)


def test_blocks_are_the_stated_ones_where_they_fit():
    assert block_shape((576, 7168), (5, 56), (128, 128)) == (128, 128)
    assert block_shape((192, 64), (2, 1), (128, 128)) == (128, 128)
    assert block_shape((192, 64), (2, 1), None) == (96, 64)
    assert block_shape((192, 64), (192, 1), (128, 128)) == (1, 128)
    assert block_shape((576, 7168), (7, 56), (128, 128)) is None
