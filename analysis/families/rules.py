"""Rules that families share: how configurations say what is counted and which layers are sparse."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from analysis.checkpoint.index import Config
from analysis.errors import CheckpointError

# Why layers of some models do not run alone, as a refusal gives the reason.
HANDS_ON_MORE = "a layer hands on more than hidden states"


def hands_on_more(_: Config) -> str:
    """Layers that choose positions to attend to, and hand the choice on to the next."""
    return HANDS_ON_MORE


def whole_number(config: Config, key: str) -> int:
    """A count of a configuration."""
    if key not in config:
        raise CheckpointError(f"config.json has no {key}.")
    value = config[key]
    if type(value) is not int or value < 1:
        raise CheckpointError(
            f"config.json gives {key} = {value!r}; it must be a whole number of at least 1."
        )
    return value


def index_of(config: Config, key: str) -> int:
    """A number of layers or a layer, from 0; 0 where a configuration leaves it out."""
    value = config.get(key) or 0
    if type(value) is not int or value < 0:
        raise CheckpointError(
            f"config.json gives {key} = {value!r}; it must be a whole number of at least 0."
        )
    return value


def count_of(config: Config, key: str) -> int:
    """A count that may be given as a list with one number per layer."""
    value = config.get(key)
    if not isinstance(value, list):
        return whole_number(config, key)
    if not value or any(number != value[0] for number in value):
        raise CheckpointError(
            f"config.json gives {key} = {value}, but only one number for all layers is handled."
        )
    return whole_number({key: value[0]}, key)


def top_ks_of(config: Config, key: str, shape: tuple[int, int], *, lists: bool) -> list[int]:
    """Experts per token of each decoder layer; `shape` is their number, and that of experts."""
    (depth, count), value = shape, config.get(key)
    if lists and isinstance(value, list) and len(value) == depth:
        top_ks = [whole_number({key: number}, key) for number in value]
    else:
        top_ks = [count_of(config, key) if lists else whole_number(config, key)] * depth
    if (top_k := max(top_ks)) > count:
        raise CheckpointError(
            f"config.json selects {key} = {top_k} experts per token, but the model has {count}."
        )
    return top_ks


def check_per_layer(counts: object, key: str, depth: int, sparse: Collection[int]) -> None:
    """Refuse what is no list with a number for each layer, 0 for those that are not in `sparse`."""
    if not isinstance(counts, list) or not all(
        type(count) is int and count >= 0 for count in counts
    ):
        raise CheckpointError(
            f"config.json gives {key} = {counts!r}; it must be a list of whole numbers."
        )
    if len(counts) != depth:
        raise CheckpointError(
            f"config.json gives {key} with {len(counts)} numbers for {depth} layers."
        )
    for layer, count in enumerate(counts):
        if (layer in sparse) != (count > 0):
            kind = "has experts" if layer in sparse else "is dense"
            raise CheckpointError(
                f"config.json gives {key}[{layer}] = {count}, but layer {layer} {kind}."
            )


def per_layer_counts(
    config: Config, key: str, depth: int, uniform: Mapping[int, int]
) -> dict[int, int]:
    """The number of experts of each sparse layer where these differ.

    `uniform` gives each sparse layer the scalar count, which is the maximum.
    """
    counts = config[key]
    check_per_layer(counts, key, depth, uniform)
    most = max(uniform.values(), default=0)
    if max(counts, default=0) != most:
        raise CheckpointError(
            f"config.json gives at most {max(counts)} experts in {key}, but {most} as the number "
            "for all layers, which must be that maximum."
        )
    return {layer: counts[layer] for layer in uniform}


def every_layer(config: Config, layer: int) -> bool:
    """No dense layers."""
    return True


@dataclass(frozen=True, slots=True)
class AllOrNone:
    """Every layer has experts where `holds` says so of the configuration, else none."""

    holds: Callable[[Config], bool]

    def __call__(self, config: Config, layer: int) -> bool:
        """Whether the layer has experts."""
        return self.holds(config)


def after_first(key: str) -> Callable[[Config, int], bool]:
    """Dense layers come first; `key` says how many."""
    return lambda config, layer: layer >= index_of(config, key)


def by_kinds(key: str, otherwise: Callable[[Config, int], bool]) -> Callable[[Config, int], bool]:
    """Layers that the list `key` calls sparse or 1; `otherwise` decides where there is no list."""

    def is_sparse(config: Config, layer: int) -> bool:
        kinds = config.get(key)
        if kinds is None:
            return otherwise(config, layer)
        if not isinstance(kinds, list) or layer >= len(kinds):
            raise CheckpointError(
                f"config.json gives {key} = {kinds!r}; it must be a list of one kind per layer."
            )
        return kinds[layer] in ("sparse", 1)

    return is_sparse


# Most models of the lineage of DeepSeek-V3 in transformers.
by_mlp_types = by_kinds("mlp_layer_types", after_first("first_k_dense_replace"))


def with_frequency(config: Config, layer: int) -> bool:
    """Dense layers come first; of the others those whose number moe_layer_freq divides."""
    step = whole_number({"moe_layer_freq": 1, **config}, "moe_layer_freq")
    return layer >= index_of(config, "first_k_dense_replace") and layer % step == 0


def with_step(config: Config, layer: int) -> bool:
    """Every decoder_sparse_step-th layer, but for those of mlp_only_layers."""
    step = whole_number({"decoder_sparse_step": 1, **config}, "decoder_sparse_step")
    dense = config.get("mlp_only_layers") or ()
    if not isinstance(dense, list | tuple):
        raise CheckpointError(
            f"config.json gives mlp_only_layers = {dense!r}; it must be a list of layers."
        )
    return layer not in dense and (layer + 1) % step == 0
