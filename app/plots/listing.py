"""The figures of the dashboard, listed once: what `moeprune plot` and reports can draw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis.criteria import get_criterion
from analysis.errors import PlanError, unknown_name
from analysis.overlap import criterion_overlap
from app import maps
from app.plots import comparison, explore
from app.plots.chart import Chart
from app.plots.scene import Scene
from pruning.sizes import size_report


@dataclass(frozen=True)
class PlotView:
    """One figure of the dashboard.

    Args:
        name: VIEW of the command line, and the name of the chart.
        page: the page that shows it.
        title: what it answers, as a heading.
        draw: the chart of a scene.
    """

    name: str
    page: str
    title: str
    draw: Callable[[Scene], Chart]


def _stratification(scene: Scene) -> Chart:
    table = maps.ranked_experts(scene.ranked(), scene.request.fraction)
    return explore.stratification_chart(table, scene.about_both())


def _overlap_map(scene: Scene) -> Chart:
    about = scene.about(f"gate {scene.request.gate}")
    return explore.overlap_map_chart(scene.variant_means, scene.criterion.exponents, about)


def _overlap(scene: Scene) -> Chart:
    criterion, request = scene.routed_criterion(), scene.request
    pairs = criterion_overlap(criterion, scene.texts, request.gate, request.fraction)
    about = scene.about(criterion.label, f"gate {request.gate}")
    return explore.overlap_chart(pairs, list(scene.texts), about)


def _overlap_by_sparsity(scene: Scene) -> Chart:
    names = dict.fromkeys((scene.routed_criterion().name, *explore.CURVE_BESIDE))
    criteria = [get_criterion(name) for name in names]
    table = maps.overlap_curve(criteria, scene.texts, scene.request.gate)
    about = scene.about(f"gate {scene.request.gate}")
    return explore.curve_chart(table, float(scene.request.fraction), about)


def _component_effects(scene: Scene) -> Chart:
    return explore.effects_chart(scene.variant_means, scene.about(f"gate {scene.request.gate}"))


def _coverage(scene: Scene) -> Chart:
    table = explore.coverage_table(scene.blender(), scene.weights)
    source = " + ".join(scene.request.corpora)
    return explore.coverage_chart(table, scene.about(scene.criterion.label, source))


def _separation(scene: Scene) -> Chart:
    scene.check_removes()
    panels = scene.ranked()
    table = maps.separations(panels, scene.request.fraction)
    names = " beside ".join(each.criterion.label for each in panels)
    return explore.separation_chart(table, scene.about(names))


def _sizes(scene: Scene) -> Chart:
    report = size_report(scene.model, scene.first.plan())
    return explore.sizes_chart(report.table, scene.about_selection())


def _kept_by(scene: Scene) -> Chart:
    return comparison.kept_by_chart(scene.comparison, _names(scene), scene.about_both())


def _rank_rank(scene: Scene) -> Chart:
    return comparison.rank_rank_chart(scene.comparison, _names(scene), scene.about_both())


def _agreement(scene: Scene) -> Chart:
    return comparison.agreement_chart(scene.comparison, scene.about_both())


def _names(scene: Scene) -> tuple[str, str]:
    return comparison.recipe_text(scene.first), comparison.recipe_text(scene.second)


_EACH = (
    PlotView("stratification", "explore", "Which experts each criterion keeps", _stratification),
    PlotView("overlap-map", "explore", "Which variants depend on the text", _overlap_map),
    PlotView("overlap", "explore", "What two texts agree on", _overlap),
    PlotView(
        "overlap-by-sparsity",
        "explore",
        "How the agreement of texts changes with sparsity",
        _overlap_by_sparsity,
    ),
    PlotView("component-effects", "explore", "What each exponent does", _component_effects),
    PlotView("coverage", "explore", "How much of each text's saliency is kept", _coverage),
    PlotView("separation", "explore", "How clear the cut is", _separation),
    PlotView("kept-by", "compare", "Which recipe keeps which expert", _kept_by),
    PlotView("rank-rank", "compare", "How far the two orders agree", _rank_rank),
    PlotView("agreement", "compare", "In which layers the recipes agree", _agreement),
    PlotView("sizes", "export", "What pruning saves", _sizes),
)
VIEWS = {view.name: view for view in _EACH}


def get_view(name: str) -> PlotView:
    """The view of this name.

    Raises:
        PlanError: there is none; names the nearest.
    """
    if name not in VIEWS:
        raise PlanError(f"{unknown_name('view', name, VIEWS)} `moeprune plot --list` lists them.")
    return VIEWS[name]


def draw_all(names: Sequence[str], scene: Scene) -> list[tuple[PlotView, Chart]]:
    """The charts of several views, in this order."""
    views = [get_view(name) for name in names]
    return [(view, view.draw(scene)) for view in views]
