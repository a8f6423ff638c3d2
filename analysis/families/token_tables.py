"""Tables that name the experts of every token id: routers that do not choose by hidden states.

DeepSeek-V4 has them in its first layers ("hash routing"): row t lists the experts of token id t.
"""

from collections.abc import Sequence

import numpy as np

from analysis.errors import CheckpointError
from analysis.numbers.arrays import IntArray


def renumbered(
    table_TK: IntArray, kept: Sequence[int], num_experts: int, first: int = 0
) -> IntArray:
    """The table of a layer that keeps only some of its experts, with their new ids.

    What names a kept expert stays. What names a removed expert e in the row of token id t names
    instead the kept expert at place (t + e) mod n of the n kept in ascending order, or the next
    place that the row does not name. So the tokens of a removed expert are spread evenly over those
    kept, and no row names an expert twice that did not before.

    Args:
        table_TK: rows of the table, from token id `first` on; K experts a token.
        kept: original ids in their new order, at least K; negative where the layer is filled up.
        num_experts: experts of the layer before.
        first: token id of the first row.
    """
    if table_TK.size and not 0 <= table_TK.min() <= table_TK.max() < num_experts:
        raise CheckpointError(
            f"A table of token ids names experts {table_TK.min()} to {table_TK.max()}, but its "
            f"layer has {num_experts} (0..{num_experts - 1})."
        )
    new_ids = np.array([place for place, expert in enumerate(kept) if expert >= 0])
    place_of = np.full(num_experts, -1)
    place_of[np.array(kept)[new_ids]] = np.arange(len(new_ids))
    places_TK = place_of[table_TK]
    for column in range(places_TK.shape[1]):
        rows = np.flatnonzero(places_TK[:, column] < 0)
        places = (first + rows + table_TK[rows, column]) % len(new_ids)
        while (is_taken := (places_TK[rows] == places[:, None]).any(axis=1)).any():
            places[is_taken] = (places[is_taken] + 1) % len(new_ids)
        places_TK[rows, column] = places
    ids_TK: IntArray = new_ids[places_TK].astype(table_TK.dtype)
    return ids_TK
