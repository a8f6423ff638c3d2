"""The tensors of a model from config.json alone, without weights.

Those of common decoders are counted by a table, others are built by transformers. What neither
names is added as far as it is known, see `as_published`.
"""

from analysis.checkpoint.index import Checkpoint
from analysis.checkpoint.opening import read_config
from analysis.errors import CheckpointError, unknown_name
from analysis.families.decoders import decoder_tensors
from analysis.families.listing import family_of
from analysis.files.home import from_home
from analysis.model.describing import describe_model
from analysis.model.moe_model import MoEModel
from analysis.model.opening import config_folder
from analysis.model.outline import Shapes, outline_of
from analysis.model.published import as_published

_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def outline_model(
    source: str, *, dtype: str | None = None, revision: str | None = None
) -> MoEModel:
    """The model that a configuration describes: shapes of its tensors, no weights.

    The source is a config.json, its folder, a hub id, or `demo`. With `dtype` all tensors have it;
    by default that of the configuration, else bfloat16, and tensors are quantised as far as the
    configuration says how, see `as_published`.
    """
    if dtype is not None and dtype not in _DTYPES:
        raise CheckpointError(unknown_name("dtype", dtype, list(_DTYPES)))
    folder = config_folder(source, revision)
    config = read_config(folder)
    # Only listed families: others are discovered from the headers of a real checkpoint.
    family = family_of(config)
    dtype_name = str(dtype or config.get("dtype") or config.get("torch_dtype"))
    dtype_name = dtype_name if dtype_name in _DTYPES else "bfloat16"
    # Never a path, as for a checkpoint.
    name = folder.resolve().name if from_home(source).exists() else source
    bare = MoEModel(name, Checkpoint(folder, config, ()), family, family.layers(config))
    tensors: Shapes | None = decoder_tensors(family, config, _DTYPES[dtype_name])
    if tensors is None:  # torch and transformers are imported where they are needed
        from analysis.calibration.built import built_tensors

        tensors = built_tensors(bare, dtype_name)
    tensors, caveats = (tensors, ()) if dtype else as_published(tensors, bare)
    return describe_model(outline_of(folder, config, tensors, caveats), name=name)
