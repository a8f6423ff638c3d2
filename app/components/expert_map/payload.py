"""Packs layer x expert tables for the browser: pure, no streamlit."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Arrangement = Literal["rank", "expert"]
Mode = Literal["values", "beside", "mask", "delta", "fates"]

PAD = -1
# 2^15 is the largest power of two a half float holds, and leaves 29 octaves below it.
_HALF_RANGE = 2.0**15


@dataclass(frozen=True, eq=False)
class MapPanel:
    """One criterion's view of every expert; rows are layers."""

    title: str  # Name of the criterion
    subtitle: str  # Note next to the name; may be empty
    # Saliency rescaled to 0..1 within each layer, by expert id, (L, n_max); NaN where a layer has
    # fewer experts
    values: NDArray[np.floating]
    # Expert ids from first to keep to last, (L, n_max), -1 where there are fewer
    order: NDArray[np.integer]
    kept: NDArray[np.integer]  # Experts kept per layer, (L,)
    # The criterion's score by expert id, (L, n_max), for the readout
    scores: NDArray[np.floating]
    # Whether the plan keeps the expert, by expert id, (L, n_max); None: the first `kept` of each
    # order
    stays: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or 0 in self.values.shape:
            raise ValueError(f"Panel {self.title!r}: values must be (layers, experts), not empty.")
        num_layers = self.values.shape[0]
        for name, array, shape in (
            ("order", self.order, self.values.shape),
            ("scores", self.scores, self.values.shape),
            ("kept", self.kept, (num_layers,)),
        ):
            if array.shape != shape:
                raise ValueError(
                    f"Panel {self.title!r}: {name} has shape {array.shape}, expected {shape}."
                )
        self._check_contents()

    def _check_contents(self) -> None:
        counts, width = self.counts, self.values.shape[1]
        present = np.arange(width) < counts[:, None]
        expected_ids = np.where(present, np.arange(width), width)
        sorted_ids = np.sort(np.where(self.order == PAD, width, self.order), axis=1)
        if not np.array_equal(sorted_ids, expected_ids) or (self.order[~present] != PAD).any():
            raise ValueError(
                f"Panel {self.title!r}: each row of order must hold the ids 0..n-1 once, then -1."
            )
        if (counts == 0).any():
            raise ValueError(f"Panel {self.title!r}: a layer without experts cannot be shown.")
        values = self.values[present]
        for is_right, rule in (
            ((values >= 0) & (values <= 1), "values must lie in 0..1"),
            (np.isfinite(self.scores[present]), "scores must be finite"),
            ((self.kept >= 0) & (self.kept <= counts), "kept must lie in 0..number of experts"),
        ):
            if not is_right.all():
                raise ValueError(f"Panel {self.title!r}: {rule}.")

    @property
    def others(self) -> list[int]:
        """Cells, row * n_max + expert, whose fate is not that of their rank, in order."""
        if self.stays is None:
            return []
        rows, ranks = np.nonzero(self.order != PAD)
        experts = self.order[rows, ranks]
        differs = self.stays[rows, experts] != (ranks < self.kept[rows])
        cells = rows[differs] * self.order.shape[1] + experts[differs]
        return sorted(int(cell) for cell in cells)

    @property
    def counts(self) -> NDArray[np.integer]:
        """Experts per layer, (L,)."""
        return np.asarray((self.order != PAD).sum(axis=1))


def map_payload(  # noqa: PLR0913 (fields of one message)
    layers: Sequence[int],
    panels: Sequence[MapPanel],
    *,
    arrangement: Arrangement,
    mode: Mode,
    selected: tuple[int, int] | None,
    lit: NDArray[np.floating] | None = None,
    fates: Sequence[Sequence[str]] = (),
) -> dict[str, Any]:
    """What `expert_map` shows; as `map_message` at most 64 KiB for two panels of 48 x 128.

    Scores are rounded to 11 significant bits of their distance from the layer's smallest score:
    as float32 they alone would fill the 64 KiB.

    `layers` are the decoder indices of the rows; there are one or two panels, of the same model.
    The mode "values" draws only the last panel, with outlines where the first decides otherwise;
    "beside" both; "mask" shows kept and pruned; "delta" the second panel as rank in A minus rank in
    B; "fates" draws the first panel in the colours `fates` of the light and of the dark theme, for
    experts that both keep, only the first, only the second, neither. `lit` are shares 0..1 by
    expert id, (L, n_max): experts with more light up, others are dim.
    """
    counts, width = panels[0].counts, panels[0].values.shape[1]
    for panel in panels:
        if panel.values.shape != (len(layers), width):
            raise ValueError(
                f"Panel {panel.title!r} has shape {panel.values.shape} for {len(layers)} layers "
                f"of {width} experts."
            )
        if not np.array_equal(counts, panel.counts):
            raise ValueError("Both panels must have the same number of experts in each layer.")
    return {
        "layers": [int(layer) for layer in layers],
        "counts": counts.tolist(),
        "width": width,
        "wide": width > 256,
        "panels": [_pack_panel(panel) for panel in panels],
        "arrangement": arrangement,
        "mode": mode,
        "selected": None if selected is None else [int(part) for part in selected],
        "lit": None if lit is None else _lit_cells(lit),
        "fates": [list(colors) for colors in fates],
    }


def map_message(payload: Mapping[str, Any]) -> bytes:
    """A payload as it travels: 4 bytes with the length of its JSON, low first, the JSON, and the
    deflated tables of its panels one after the other.
    """
    panels: Sequence[Mapping[str, Any]] = payload["panels"]
    plain = [{name: panel[name] for name in panel if name != "packed"} for panel in panels]
    text = json.dumps({**payload, "panels": plain}, separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *(panel["packed"] for panel in panels)])


def _lit_cells(lit: NDArray[np.floating]) -> list[list[float]]:
    """Cells, row * n_max + expert, with a share above 0, and the share in three digits."""
    cells = np.flatnonzero(lit > 0)
    shares = lit.ravel()[cells].tolist()
    return [[int(cell), round(share, 3)] for cell, share in zip(cells, shares, strict=True)]


def _pack_panel(panel: MapPanel) -> dict[str, Any]:
    # By rank, where each score stands in its layer's range, 0..1; the range's start and width.
    scores = _by_rank(panel, panel.scores.astype(np.float64))
    lowest = np.nanmin(scores, axis=1).astype(np.float32)
    span = (np.nanmax(scores, axis=1) - lowest).astype(np.float32)
    # A constant layer divides by one instead of zero; float32 may round an end past its score.
    shares = (scores - lowest[:, None]) / np.where(span > 0, span, 1)[:, None]
    shares = np.clip(np.nan_to_num(shares), 0, 1)
    # By rank both fall slowly, so steps deflate far better than the numbers; unsigned steps wrap.
    halves = _steps((shares * _HALF_RANGE).astype("<f2").view("<u2"))
    levels = _steps(np.rint(np.nan_to_num(_by_rank(panel, panel.values)) * 255).astype("u1"))
    wide = panel.order.shape[1] > 256
    parts = (
        lowest.astype("<f4"),
        span.astype("<f4"),
        np.where(panel.order == PAD, 0, panel.order).astype("<u2" if wide else "u1"),
        levels,
        (halves >> 8).astype("u1"),
        (halves & 255).astype("u1"),
    )
    packed = zlib.compress(b"".join(part.tobytes() for part in parts))
    return {
        "title": panel.title,
        "subtitle": panel.subtitle,
        "kept": panel.kept.tolist(),
        "others": panel.others,
        "size": len(packed),
        "packed": packed,
    }


def _steps(table: NDArray[Any]) -> NDArray[Any]:
    return np.diff(table, axis=1, prepend=table.dtype.type(0))


def _by_rank(panel: MapPanel, table: NDArray[Any]) -> NDArray[Any]:
    """A table by expert id, reordered from first to keep to last; NaN past the last."""
    sorted_ = np.take_along_axis(table, np.where(panel.order == PAD, 0, panel.order), axis=1)
    return np.where(panel.order == PAD, np.nan, sorted_)
