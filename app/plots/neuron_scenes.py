"""The charts of neurons on Explore for a recipe: what `moeprune plot` and reports draw of them."""

from analysis.arrays import BoolArray
from analysis.criteria import CRITERIA
from analysis.drain import drain
from analysis.errors import StatsError
from analysis.stats.choose import choose_stats, parse_corpus_weight
from analysis.stats.store import NEURONS
from app.charts.chart import Drawing
from app.charts.context import Context
from app.plots import loss_bins
from app.plots import neuron_evidence as charts
from app.tables.maps import rank
from pruning.atoms.cuts import (
    NeuronField,
    expert_shares,
    field_of,
    layer_cuts,
    neurons_of,
    pruned_neurons,
    saliency_histogram,
)
from pruning.evaluate.bins_record import BinsStore
from pruning.evaluate.record import EvaluationStore
from pruning.plan import ATOMIC_GRANULARITY
from pruning.planning.neuron_scopes import SCOPES, scopes_of
from pruning.planning.ranking import select_measured
from pruning.requests.base import validated
from pruning.requests.plan import PlanRequest


def kept_of_context(context: Context) -> Drawing:
    """What stays of each expert, in the widest scope that the criterion has.

    Raises:
        UserError: a criterion that ranks no neurons, or statistics that are missing.
    """
    field, gone, about = _cut(context)
    return charts.share_chart(expert_shares(field, gone), None, about)


def saliency_of_context(context: Context) -> Drawing:
    """The neurons of each layer by saliency, with the cut; see `kept_of_context`."""
    field, gone, about = _cut(context)
    histogram = saliency_histogram(field, gone)
    if histogram.empty:
        raise StatsError("No neuron has a saliency above 0, so there is nothing to draw.")
    return charts.saliency_chart(histogram, layer_cuts(field, gone), about)


def expert_of_context(context: Context) -> Drawing:
    """The neurons of the expert that is most nearly halved; see `kept_of_context`."""
    field, gone, about = _cut(context)
    layer, expert = charts.most_divided(expert_shares(field, gone))
    table = neurons_of(field, gone, layer, expert)
    return charts.neuron_chart(table, f"{about} | layer {layer}, expert {expert}")


def beside_of_context(context: Context) -> Drawing:
    """What goes of experts that HEAPr ranks low and high as a whole; see `kept_of_context`."""
    field, gone, about = _cut(context)
    heapr, asked = CRITERIA["heapr"], context.request
    wanted = [parse_corpus_weight(text) for text in asked.corpora]
    stats = choose_stats(heapr, context.store, context.model, wanted).stats
    ranked = rank(heapr, stats, asked.gate)
    present = ranked.grid.present
    experts = ranked.grid.index().assign(saliency=ranked.saliency[present])
    table = charts.beside_experts(field, gone, experts, ranked.pruned(asked.fraction)[present])
    return charts.experts_chart(table, about)


def overlap_of_context(context: Context) -> Drawing:
    """How far the pruned neurons of the texts agree; see `kept_of_context`.

    Raises:
        StatsError: fewer than two texts were measured.
    """
    scope = scopes_of(context.routed_criterion().name)[0]
    texts = [text for text, run in context.runs.items() if NEURONS in run.manifest.files]
    if len(texts) < 2:
        raise StatsError(
            f"The neurons of {context.model.name} were measured on {len(texts)} text; calibrate on "
            "another with `--groups routed,gradient`."
        )
    context.check_removes()
    fields = {text: _field(context, (text,)) for text in texts}
    share, pools = context.request.fraction, fields[texts[0]].pools(scope)
    masks = {
        text: pruned_neurons(field.ranks(scope), pools, share) for text, field in fields.items()
    }
    pairs = charts.text_overlaps(masks, pools, share)
    return charts.text_overlap_chart(pairs, texts, context.about_neurons())


def _cut(context: Context) -> tuple[NeuronField, BoolArray, str]:
    """The neurons by the recipe's criterion, those that go, and the provenance line."""
    asked = context.request
    scope = scopes_of(asked.criterion)[0]
    field = _field(context, asked.corpora)
    gone = pruned_neurons(field.ranks(scope), field.pools(scope), asked.fraction)
    within = f"neurons compete within {SCOPES[scope].lower()}"
    return field, gone, f"{context.about_neurons()} | {within}"


def _field(context: Context, corpora: tuple[str, ...]) -> NeuronField:
    asked = context.request
    request: PlanRequest = validated(
        PlanRequest,
        {
            "model": asked.model,
            "granularity": ATOMIC_GRANULARITY,
            "criterion": asked.criterion,
            "corpora": corpora,
            "sparsity": asked.sparsity,
            "atom_scope": str(scopes_of(asked.criterion)[0]),
        },
    )
    return field_of(drain(select_measured(request, context.model, context.store)).neurons)


def loss_of_context(context: Context, granularity: str) -> Drawing:
    """The recipe's criterion against the true loss, of experts or of neurons.

    Raises:
        StatsError: it was not measured.
    """
    records = BinsStore(context.store.directories).records(context.model.identity)
    found = loss_bins.record_of(
        records, granularity, context.request.criterion, context.request.corpora
    )
    if found is None:
        what = loss_bins.WORDS[granularity]
        others = ", ".join(loss_bins.measured_criteria(records, granularity))
        advice = f"--criterion takes those that were: {others}" if others else "none was"
        raise StatsError(
            f"{context.ranking_criterion.label} was not measured against the loss of {what} of "
            f"{context.model.name}; {advice}. `moeprune bins` measures."
        )
    return loss_bins.bins_chart(found)


def same_bytes_of_context(context: Context) -> Drawing:
    """Neurons beside whole experts of the same bytes, whatever ranked them.

    Raises:
        StatsError: no evaluations of both are of one size.
    """
    records = EvaluationStore(context.store.directories).records(context.model.identity)
    table = charts.same_bytes_table(records)
    if table.empty:
        raise StatsError(
            f"{context.model.name} has no evaluations of neurons and of whole experts of the same "
            "size; see `moeprune evaluate`."
        )
    rows = table[table["removed"] == table["removed"].iloc[0]].reset_index(drop=True)
    return charts.same_bytes_chart(rows, context.about_neurons())
