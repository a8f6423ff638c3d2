"""Overlap of the pruned neurons between calibration corpora."""

from app.charts import neuron_cut
from app.charts.chart import Chart, Drawing
from app.charts.context import Context
from app.charts.overlap import matrix_drawing
from pruning.plan import ATOMIC_GRANULARITY


def _draw(context: Context) -> Drawing:
    corpora, pairs = neuron_cut.measured(context), neuron_cut.corpora_overlaps(context)
    return matrix_drawing("neuron-overlap", pairs, corpora, neuron_cut.about(context))


NEURON_OVERLAP = Chart(
    "neuron-overlap",
    "explore",
    "What two texts agree on of the neurons that go",
    _draw,
    ATOMIC_GRANULARITY,
    reads_scope=True,
)
