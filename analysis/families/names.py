"""Names of the tensors of experts and routers, as patterns made from a family's table."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property


def any_of(words: Iterable[str]) -> str:
    """A pattern of one of these words; of nothing without any."""
    # Longest first: one name may begin another.
    found = sorted(map(re.escape, words), key=len, reverse=True)
    return "|".join(found) if found else r"(?!)"


@dataclass(frozen=True)
class NamePatterns:
    """Patterns anchored to the trunk, so that `mtp.layers.0.mlp.experts` is no layer of it.

    Args:
        trunks: prefixes of the layers.
        blocks: names of the MoE block: a checkpoint saved with stacked experts has the loaded
            model's name for it.
        projections: projection -> its name in one expert.
        stacked: name of a stacked tensor -> its projection.
        routers: names of the router's tensors with one entry per expert.
    """

    trunks: tuple[str, ...]
    blocks: tuple[str, ...]
    projections: Mapping[str, str]
    stacked: Mapping[str, str]
    routers: tuple[str, ...]

    @cached_property
    def _block(self) -> str:
        return rf"(?:{any_of(self.trunks)})\.(\d+)\.(?:{any_of(self.blocks)})\."

    @cached_property
    def expert(self) -> re.Pattern[str]:
        """Groups: head, layer, expert, tail, projection's name, role."""
        names = any_of(self.projections.values())
        return re.compile(rf"({self._block}experts\.)(\d+)(\.({names})\.(\w+))")

    @cached_property
    def stacked_tensor(self) -> re.Pattern[str]:
        """Groups: layer, name of the stack, role (None for the weight itself)."""
        return re.compile(rf"{self._block}({any_of(self.stacked)})(?:[_.](\w+))?")

    @cached_property
    def router(self) -> re.Pattern[str]:
        """Groups: layer, name inside the block."""
        return re.compile(rf"{self._block}({any_of(self.routers)})")

    @cached_property
    def held_by_block(self) -> re.Pattern[str]:
        """A tensor that the block itself holds, in no module of it. Group: layer."""
        return re.compile(rf"{self._block}\w+")

    @cached_property
    def routed(self) -> re.Pattern[str]:
        """Whatever lies in a module of experts or of the router. Group: layer."""
        modules = {name.partition(".")[0] for name in (*self.stacked, *self.routers)}
        return re.compile(rf"{self._block}(?:experts|{any_of(modules)})(?:\.|$)")
