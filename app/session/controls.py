"""The controls of a plan, a row each: spec, link and widgets follow from the table."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import streamlit as st

from analysis.criteria import NEURON_CRITERIA, criterion_label
from analysis.criteria.heapr import DEFAULT_LAMBDA
from analysis.model.moe_model import MoEModel
from analysis.stats.columns import GATES
from app.literal import literal
from app.session.plan_state import counts_typed, schedule_chosen
from app.session.search_data import searches_of
from app.session.state import (
    BITS,
    BUDGET,
    CORPORA,
    COUNTS,
    CRITERION,
    EXPERTS,
    LAYERS,
    MOST_LAMBDA,
    NEURON_CRITERION,
    OR_NONE,
    SCHEDULE,
    SCOPE,
    UNIFIED,
    USUAL_OF_NEURONS,
    Control,
    Controls,
    Fields,
    Page,
    corpus_options,
    criterion_chosen,
    criterion_words,
    has_exponents,
    not_here,
    possible_budgets,
    possible_criteria,
    possible_scopes,
    possible_steps,
    reads_gates,
)
from pruning.plan.bits import FORMATS
from pruning.plan.expert_sizes import fewer_bits
from pruning.plan.experts_per_token import possible_top_k
from pruning.plan.plan import EXPERT_GRANULARITY, NEURON_GRANULARITY
from pruning.plan.units import NeuronScope
from pruning.plan.widths import DEFAULT_MULTIPLE
from pruning.planning.choice import (
    EXPERT_BUDGETS,
    MOST_TEXT,
    MULTIPLES,
    NEURON_BUDGETS,
    SCHEDULE_NAMES,
    SCOPES,
    WIDTH_MODES,
    WIDTH_MULTIPLES,
    counts_example,
    possible_shrinks,
    schedule_label,
)
from pruning.schedules import SCHEDULES
from pruning.schedules.spreads import PATTERNS
from pruning.spec.spec import PlanSpec, spec_of

_OTHERS_LOSE: Final = " The others lose more, so that the budget holds."
_SUMMARIES: Final = "  \n".join(
    f"**{schedule_label(name)}**: {SCHEDULES[name].summary}."
    for name in SCHEDULE_NAMES
    if name in SCHEDULES
)


def _option_words(schedule: str) -> str:
    """A schedule among others; of a pattern, whose name does not say so, which layers lose more."""
    return f"{schedule_label(schedule)}{' layers lose more' if schedule in PATTERNS else ''}"


def _text_look(example: str, width: int = 150) -> Fields:
    return {"placeholder": example, "max_chars": MOST_TEXT, "width": width}


def _counts_look(page: Page) -> Fields:
    example = f"e.g. {counts_example(page.model.layers)}"
    return {"placeholder": example, "max_chars": MOST_TEXT, "width": 230}


def _top_k_look(page: Page) -> Fields:
    own = max(map(attrgetter("top_k"), page.model.layers))
    return {"format_func": lambda number: str(number or own), "width": 135}


def _possible_multiples(page: Page) -> Sequence[int]:
    most = max(map(attrgetter("num_experts"), page.model.layers))
    return [number for number in MULTIPLES if number <= most]


CONTROLS: Final = (
    Control(
        field="granularity",
        usual=EXPERT_GRANULARITY,
        label="Granularity",
        help="**Experts**: remove whole experts.  \n"
        "**Neurons**: make experts narrower; a neuron is a row of gate and up and a column of "
        "down.",
        options=(EXPERT_GRANULARITY, NEURON_GRANULARITY),
        words=lambda name: f"{name.capitalize()}s",
        group="granularity",
    ),
    Control(
        key="corpus",
        field="corpora",
        usual=None,
        label="Calibration corpus",
        help="Its statistics rank the experts; (blend) mixes all.",
        widget=st.pills,
        options=lambda page: corpus_options(page.corpora),
        words=literal,
        group="corpus",
        meaning=CORPORA,
        on_change=None,
    ),
    Control(
        key="budget",
        field="sparsity",
        usual="sparsity",  # the field that the slider sets
        label="Remove a share of",
        help="**Experts** of each layer, or **bytes** of the checkpoint: the fewest experts "
        "that save this much, with the uniform schedule an equal number of each layer.",
        options=possible_budgets,
        words=EXPERT_BUDGETS.__getitem__,
        group="budget",
        of="expert",
        meaning=None,
        look=lambda page: {"disabled": not possible_shrinks(page.model)},
    ),
    Control(
        field="sparsity",
        usual=50,
        label="Sparsity",
        help="How much is pruned.",
        widget=st.select_slider,
        options=possible_steps,
        words=lambda percent: f"{percent}%",
        group="budget",
        meaning=BUDGET,
        on_change=None,
    ),
    Control(
        field="criterion",
        usual=UNIFIED,
        label="Criterion",
        widget=st.selectbox,
        options=possible_criteria,
        words=criterion_words,
        group="criterion",
        of="expert",
        meaning=CRITERION,
        look={"width": 175},
        on_change=criterion_chosen,
    ),
    *(
        Control(
            key=key,
            field="criterion",
            usual=1,
            label=label,
            options=exponents,
            group="criterion",
            of="expert",
            when=has_exponents,
            meaning=None,
            on_change=None,
        )
        for key, label, exponents in (
            ("b", "b sum, mean", (0, 1)),
            ("alpha", "\u03b1 gate weight", (0, 1, 2)),
            ("beta", "\u03b2 output norm", (0, 1, 2)),
        )
    ),
    Control(
        key="neurons",
        field="criterion",
        usual=USUAL_OF_NEURONS,
        label="Criterion",
        help="**HEAPr**: expected loss increase without the neuron; one forward and "
        "one backward pass.  \n**CAMERA-P**: output magnitude of the neuron.  \n**Neuron norms**: "
        "weights only, no calibration; a baseline, not from a paper.  \n**Random**: the floor that "
        "others must beat.",
        options=tuple(NEURON_CRITERIA),
        words=criterion_label,
        group="criterion",
        of="neuron",
        meaning=NEURON_CRITERION,
    ),
    Control(
        key="lambda",
        field="criterion",
        usual=DEFAULT_LAMBDA,
        label="Lambda",
        help="Weight of a neuron's largest activation relative to the norm of all. The paper "
        "gives no value; our default is 1.",
        widget=st.number_input,
        group="criterion",
        of="neuron",
        when=lambda page: bool(page.values.get("neurons") == "camera-p"),
        meaning=None,
        look={"min_value": 0.0, "max_value": MOST_LAMBDA, "step": 0.5, "width": 140},
    ),
    Control(
        field="neuron_scope",
        # Equal widths: the export is smaller and loads everywhere.
        usual=str(NeuronScope.EXPERT),
        label="Neurons compete within",
        help="**Global** (HEAPr-G): prune the least salient neurons of the whole model.  "
        "\n**Per layer** (HEAPr-L): prune the same fraction of every layer.  \n**Per expert**: "
        "prune the same fraction of every expert, so widths stay equal.  \n**Measured**: "
        "per layer, and layers lose what their measured sensitivity says.",
        options=possible_scopes,
        words=lambda scope: SCOPES.get(scope) or schedule_label(scope),
        group="criterion",
        of="neuron",
        meaning=SCOPE,
    ),
    Control(
        field="schedule",
        usual="uniform",
        label="Schedule",
        help=f"How the budget is split across layers.  \n{_SUMMARIES}  \n**Searched**: "
        "found by a search on the model itself.  \n**By hand**: counts set on the Plan page, "
        "starting from any schedule.",
        options=SCHEDULE_NAMES,
        words=_option_words,
        group="schedule",
        of="expert",
        meaning=SCHEDULE,
        look={"wrap": True},
        on_change=schedule_chosen,
    ),
    Control(
        key="budget",
        field="sparsity",
        usual="sparsity",
        label="Sparsity is a share of",
        help="**Neurons** of the routed experts (HEAPr, Algorithm 1), **all parameters** of the "
        "model, embeddings and attention as well (its Figure 2, without padding), or **bytes** of "
        "the export in its width mode.",
        options=possible_budgets,
        words=NEURON_BUDGETS.__getitem__,
        group="schedule",
        of="neuron",
        meaning=None,
    ),
    Control(
        field="width_mode",
        usual="uniform",
        label="Widths of the export",
        help="**uniform**: one width for the model, which every program reads.  \n**per-layer**: "
        "one per layer.  \n**ragged**: each expert its own on disk, one per layer when loaded.  \n"
        "Missing neurons are padded with zeros, so all three compute the same.",
        options=WIDTH_MODES,
        group="schedule",
        of="neuron",
        on_change=None,
    ),
    Control(
        field="width_multiple_of",
        usual=DEFAULT_MULTIPLE,
        label="Rounded up to",
        help="Loaded widths are multiples of this, which grouped matrix products need: 16 bytes, 8 "
        "numbers in bfloat16.",
        widget=st.selectbox,
        options=WIDTH_MULTIPLES,
        group="schedule",
        of="neuron",
        look={"width": 115},
        on_change=None,
    ),
    Control(
        field="multiple_of",
        usual=1,
        label="Experts keep a multiple of",
        help="Neurons are removed in blocks, so that each expert keeps a multiple of this many.",
        widget=st.selectbox,
        options=MULTIPLES,
        group="schedule",
        of="neuron",
        look={"width": 185},
    ),
    Control(
        key="searched",
        label="Search",
        help="It also sets the order of experts within layers.",
        widget=st.selectbox,
        options=lambda page: [search.search_id for search in searches_of(page.model).known],
        group="search",
        of="expert",
        look={"width": 340},
    ),
    Control(
        field="gate",
        usual="applied",
        label="Gate weights",
        help="Applied: as the model multiplies. Renormalized: divided by the sum of the selected.",
        options=GATES,
        words=str.capitalize,
        when=reads_gates,
        on_change=None,
    ),
    Control(
        field="protect",
        label="Protect layers",
        help="Layers to keep whole." + _OTHERS_LOSE,
        widget=st.text_input,
        meaning=LAYERS,
        look=_text_look("e.g. 0,5-7"),
    ),
    Control(
        field="pin",
        label="Keep experts",
        help="LAYER:EXPERTS that stay whole." + _OTHERS_LOSE,
        widget=st.text_input,
        meaning=EXPERTS,
        look=_text_look("e.g. 3:5,7-9"),
    ),
    Control(
        field="drop",
        label="Drop experts",
        help="LAYER:EXPERTS to remove whole, with their router rows. The budget holds.",
        widget=st.text_input,
        meaning=EXPERTS,
        look=_text_look("e.g. 4:0,2"),
    ),
    Control(
        field="multiple_of",
        usual=1,
        label="Multiple of",
        help="Layers keep a multiple of this many experts, as parallel kernels may require.",
        widget=st.selectbox,
        options=_possible_multiples,
        of="expert",
        look={"width": 105},
    ),
    Control(
        key="counts",
        field="set",
        label="Manual counts",
        help="Experts kept per sparse layer, separated by dots.",
        widget=st.text_input,
        of="expert",
        meaning=COUNTS,
        look=_counts_look,
        on_change=counts_typed,
    ),
    Control(
        key="locked",
        label="Locked layers",
        help="Layers that stay unchanged when another layer is edited.",
        widget=st.text_input,
        of="expert",
        look=_text_look("none", 120),
        on_change=None,
    ),
    Control(
        field="keep_super",
        usual=False,
        label="Keep super experts",
        help="Experts whose largest output stands out of all in the calibration "
        "(arXiv:2507.23279): without three of them Qwen3-30B-A3B repeats itself." + _OTHERS_LOSE,
        widget=st.checkbox,
        options=(False, True),
    ),
    Control(
        field="top_k",
        usual=0,  # as many experts per token as the model's own router selects
        label="Experts per token",
        help="Fewer of those that stay compute each token: less work, the same bytes. The loss of "
        "such a plan is measured, not predicted.",
        widget=st.selectbox,
        options=lambda page: possible_top_k(page.model),
        meaning=OR_NONE,
        look=_top_k_look,
    ),
    Control(
        key=BITS,  # of weights as the checkpoint has them
        label="Simulated bits",
        help="The plan's experts in fewer bits, as evaluations simulate them. An export has the "
        "weights as they are; engines have their own tools for fewer bits.",
        widget=st.selectbox,
        options=lambda page: ("", *fewer_bits(page.model)),
        words=lambda name: FORMATS[name].label if name else "none",
        look={"width": 135},
    ),
)

# The controls of a new session. That of the corpus begins with the first.
USUAL: Final[Controls] = {row.key: row.usual for row in CONTROLS if row.usual is not None}
# Controls in which a person may write what is no plan.
TEXTS: Final = tuple(row.key for row in CONTROLS if row.field and row.widget is st.text_input)
# Key of a control that the spec has not -> its row.
BESIDE: Final = {row.key: row for row in CONTROLS if not row.field}
_ROWS: Final[Mapping[Any, tuple[Control, ...]]] = {
    name: tuple(row for row in CONTROLS if row.of in ("", name))
    for name in (EXPERT_GRANULARITY, NEURON_GRANULARITY)
}


def rows_on(page: Page) -> tuple[Control, ...]:
    """The rows of a page's granularity."""
    return _ROWS.get(page.values.get("granularity"), _ROWS[EXPERT_GRANULARITY])


def asked_spec(controls: Controls, model: MoEModel, corpora: Sequence[str]) -> PlanSpec:
    """The plan that controls ask for, with corpora and gate weights whether they rank or not.

    `corpora` are the calibrated ones. The usual value stands in for one that no control offers.
    """
    page, fields = Page(controls, model, corpora), dict[str, Any]()
    for row in rows_on(page):
        if row.meaning and row.field:
            fields |= row.meaning.asks(row, page)
    return spec_of(**fields)


def controls_for(spec: PlanSpec, model: MoEModel, corpora: Sequence[str]) -> dict[str, Any]:
    """The controls that ask for a plan; a PlanError if they cannot ask for all of it."""
    controls = dict(USUAL)
    page = Page({"granularity": spec.ranking.granularity}, model, corpora)
    for row in rows_on(page):
        if row.meaning and row.field:
            controls |= row.meaning.shows(row, spec, page)
    shown = asked_spec(controls, model, corpora)
    wanted = {
        "criterion": spec.ranking.rule.name if spec.ranking.criterion else "",
        controls["budget"]: f"{controls['sparsity']}%",
        "corpora": shown.ranking.corpora,
    }
    for name, words in spec.changed(**wanted).differences(shown).items():
        rows = [row for row in rows_on(page) if row.field == name]
        page = Page(controls, model, corpora)
        label, known = (rows[0].label, rows[0].offered(page)) if rows else ("", ())
        raise not_here(f"{name}: {' '.join(words)}", label, filter(None, known))
    return controls
