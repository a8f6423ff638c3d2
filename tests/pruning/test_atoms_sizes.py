"""What plans of neurons take: by hand, and against real exports of every family and mode."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from atom_cases import allowed
from exports import keeping_neurons
from safetensors import safe_open

from analysis.errors import PlanError
from analysis.families import MoELayer
from analysis.model import load_model_index
from analysis.widths import expert_widths
from families.configs import BY_NAME, CASES
from pruning import load_pruned
from pruning.active import active_experts, counted_routing, expert_shapes, token_shares
from pruning.atoms.budget import atom_count_budget, reachable_totals
from pruning.atoms.rooms import atom_rooms
from pruning.atoms.selection import AtomScope, Contest
from pruning.atoms.sizes import ATOM_SIZE_COLUMNS, PLAN_ALONE, atom_sizer, atom_sizes
from pruning.atoms.target import AtomTarget, atom_params_budget, atom_size_budget
from pruning.atoms.widths import WidthChoice, WidthMode
from pruning.constraints import Constraints
from pruning.plan import PruningPlan, fit_plan, keep_all, model_ref
from pruning.sizes import size_report
from pruning.surgery.export import ExportOptions, export_checkpoint
from pruning.surgery.width_sizes import width_options

# The tiny OLMoE: d = 16, 3 layers of 7 experts of width 24, top-2, float32.
NEURON = 3 * 16


@pytest.fixture
def model(checkpoint):
    return load_model_index(str(checkpoint("olmoe").path))


@pytest.fixture
def plan(model):
    """Layer 0: widths 24, 8, 0 and four times 24; layer 1 loses two experts; layer 2 is whole."""
    atoms = {0: {1: tuple(range(3, 11)), 2: ()}}
    kept = {1: (0, 2, 3, 5, 6)}
    return PruningPlan(model_ref(model), kept, granularity="atomic", kept_atoms=atoms)


def test_shapes_by_hand(model):
    for shape in expert_shapes(model).values():
        assert (shape.neuron_bytes, shape.neuron_params) == (4 * NEURON, NEURON)
        assert (shape.neuron_weights, shape.fixed_bytes, shape.fixed_params) == (NEURON, 0, 0)


def test_shares_by_hand():
    layer = MoELayer(3, 4, 2)
    assert token_shares(layer, (0, 1, 3), None) == dict.fromkeys((0, 1, 3), Fraction(2, 3))
    # 10 tokens choose two experts each.
    routing = {3: (8, 6, 5, 1)}
    shares = token_shares(layer, range(4), routing)
    assert shares == {
        0: Fraction(8, 10),
        1: Fraction(6, 10),
        2: Fraction(5, 10),
        3: Fraction(1, 10),
    }
    # Without expert 2 the others take its tokens in proportion: 2 * 8/15 is more than 1.
    assert token_shares(layer, (0, 1, 3), routing)[0] == Fraction(16, 15)
    assert token_shares(layer, (3,), {3: (1, 1, 1, 0)}) == {3: 2}


def test_active_and_flops_by_hand(model, plan):
    routing = {0: (9, 5, 4, 2, 0, 0, 0), 1: (1,) * 7, 2: (1,) * 7}
    even, measured = (active_experts(model, fit_plan(plan, model), r) for r in (None, routing))
    # Even: two of seven, 5 * 24 + 8 neurons; layers 1 and 2 have two experts of 24 each.
    assert even.params == round(Fraction(2, 7) * 128 * NEURON) + 2 * 48 * NEURON
    # Measured: 10 tokens; shares .9, .5, .4, .2 of widths 24, 8, 0, 24: 30.4 neurons.
    assert measured.params == round(Fraction(304, 10) * NEURON) + 2 * 48 * NEURON
    assert measured.flops == round(2 * Fraction(304, 10) * NEURON) + 2 * 2 * 48 * NEURON
    whole = active_experts(model, keep_all(model), routing)
    assert whole.params == 3 * 48 * NEURON
    report = size_report(model, plan, routing)
    assert (report.expert_flops, report.expert_flops_after) == (whole.flops, measured.flops)
    assert report.is_measured
    experts_after = (128 + 5 * 24 + 7 * 24) * NEURON
    assert report.active_after == report.params_after - experts_after + measured.params
    assert not size_report(model, plan).is_measured


def test_modes_by_hand(model, plan):
    table = atom_sizes(model, plan, 8).set_index("mode")
    assert tuple(table.reset_index().columns) == ATOM_SIZE_COLUMNS
    routers, rest = (7 + 5 + 7) * 16, size_report(model).params_before - 21 * (24 * NEURON + 16)
    wide = (7 + 5 + 7) * 24 * NEURON
    cut = wide - (16 + 24) * NEURON
    assert table.loc[PLAN_ALONE, "params"] == table.loc["ragged", "params"] == rest + routers + cut
    for mode in ("uniform", "per-layer"):
        assert table.loc[mode, "params"] == rest + routers + wide
    assert (
        table.loc[["uniform", "per-layer", "ragged"], "loaded_params"] == rest + routers + wide
    ).all()
    assert (table["disk"] == 4 * table["params"]).all()
    # In memory experts are 24 wide, zeros or not.
    assert (table["expert_flops"].iloc[1:] == 2 * 3 * 48 * NEURON).all()
    assert (table["active"].iloc[1:] == rest + routers + 3 * 48 * NEURON).all()
    assert (table["refused"] == "").all()


def test_measured_routing_comes_from_statistics(make_expert_stats):
    table = make_expert_stats().table
    routing = counted_routing(table.sample(frac=1, random_state=1))
    for layer, counts in routing.items():
        rows = table[table["layer"] == layer].sort_values("expert")
        assert list(counts) == rows["num_tokens"].tolist()


def test_another_model_is_refused(model, checkpoint):
    other = keep_all(load_model_index(str(checkpoint("mixtral").path)))
    with pytest.raises(PlanError, match="was made for"):
        atom_sizes(model, other)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_arithmetic_is_what_the_exporter_plans(atom_source, case):
    source = atom_source(case)
    model, plan = source.described, source.plan
    table = atom_sizes(model, plan).set_index("mode")
    for option in width_options(model, plan):
        row = table.loc[str(option.mode)]
        assert row["refused"] == option.refused
        if option.refused:
            assert pd.isna(row["disk"])
            continue
        assert row["loaded"] == option.loaded_bytes
        headers = option.disk_bytes - row["disk"]
        assert 0 < headers < 200 * len(model.checkpoint.tensors) + 999
    alone, report = table.loc[PLAN_ALONE], size_report(model, plan)
    assert (alone["params"], alone["disk"]) == (report.params_after, report.bytes_after)
    assert alone["active"] == report.active_after
    assert alone["expert_flops"] == report.expert_flops_after


@pytest.mark.parametrize("mode", list(WidthMode), ids=str)
@pytest.mark.parametrize("name", ["olmoe", "deepseek_v2", "gpt_oss", "nemotron_h"])
def test_arithmetic_is_what_exports_hold(width_export, name, mode):
    case = BY_NAME[name]
    if not allowed(case, str(mode)):
        return
    export = width_export(case, str(mode))
    row = atom_sizes(export.source.described, export.source.plan).set_index("mode").loc[str(mode)]
    written = load_model_index(str(export.path))
    assert row["disk"] == written.checkpoint.nbytes
    assert row["params"] == written.checkpoint.num_params
    held = {t.data_ptr(): t.numel() for t in load_pruned(export.path).state_dict().values()}
    assert row["loaded_params"] == sum(held.values())


def as_gib(size):
    """An exact decimal: 2^30 divides 10^30."""
    return f"{size * 5**30}e-30"


class TestTarget:
    """The smallest budget that meets a target, found by trying every one."""

    @pytest.mark.parametrize("mode", list(WidthMode), ids=str)
    @pytest.mark.parametrize("scope", list(AtomScope), ids=str)
    @pytest.mark.parametrize("dtype", ["own", "bfloat16"])
    def test_against_every_budget(self, model, mode, scope, dtype):
        limits = Constraints(multiple_of=6, pinned={1: frozenset({3})}, floor=6)
        contest, sizer = self.contest(model, scope, limits), atom_sizer(model)
        choice = WidthChoice(mode, 8)
        sizes = {}
        for total in reachable_totals(contest.pools):
            plan = self.plan(model, contest, atom_count_budget(contest.pools, total))
            row = atom_sizes(model, plan, 8).set_index("mode").loc[str(mode)]
            sizes[total] = int(row["disk"] if dtype == "own" else 2 * row["params"])
        for wanted in sorted(set(sizes.values()))[::7]:
            target = AtomTarget(as_gib(wanted), dtype, choice)
            budget = atom_size_budget(contest, sizer, target)
            assert budget.total == min(total for total, size in sizes.items() if size <= wanted)
        least = min(sizes.values())
        with pytest.raises(PlanError, match="smallest target that works is") as caught:
            atom_size_budget(contest, sizer, AtomTarget(as_gib(least - 1), dtype, choice))
        works = str(caught.value).rpartition(" is ")[2].rstrip(".")
        budget = atom_size_budget(contest, sizer, AtomTarget(works, dtype, choice))
        assert sizes[budget.total] == least

    def contest(self, model, scope, limits):
        generator = np.random.default_rng(5)
        widths = expert_widths(model)
        saliency = {
            layer: tuple(generator.normal(size=width) for width in held)
            for layer, held in widths.items()
        }
        return Contest(saliency, atom_rooms(widths, limits), scope)

    def plan(self, model, contest, budget):
        atoms = contest.kept(contest.removed(budget))
        return keeping_neurons(model, atoms)

    def test_no_number_is_one_line(self, model):
        contest = self.contest(model, AtomScope.GLOBAL, Constraints())
        with pytest.raises(PlanError, match="is no number of GiB"):
            atom_size_budget(contest, atom_sizer(model), AtomTarget("much"))


class TestParamsShare:
    """The smallest budget that takes a share of all parameters, by counting numbers in files."""

    # Of the tiny OLMoE with nothing removed: 21 experts of 24 neurons of NEURON numbers.
    neurons = 21 * 24

    def whole(self, model):
        """Numbers in the checkpoint's tensors, from the shapes in its headers alone."""
        shapes = [entry.shape for entry in model.checkpoint.tensors.values()]
        return sum(int(np.prod(shape)) for shape in shapes)

    @pytest.mark.parametrize("scope", list(AtomScope), ids=str)
    @pytest.mark.parametrize("step", [1, 4])
    def test_the_share_is_reached_and_one_step_less_does_not(self, model, scope, step):
        contest = TestTarget().contest(model, scope, Constraints(multiple_of=step))
        sizer, whole = atom_sizer(model), self.whole(model)
        for percent in (0, 1, 20, 37, 60):
            budget = atom_params_budget(contest, sizer, f"{percent}%")
            assert (budget.kind, budget.asked) == ("params", f"{percent}%")
            # A neuron takes NEURON numbers with it and nothing else.
            exact = Fraction(percent, 100) * whole / NEURON
            assert budget.total == -(-exact // step) * step

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_of_every_family_the_numbers_that_stay_are_those_of_the_budget(self, atom_source, case):
        model = atom_source(case).described
        contest, whole = TestTarget().contest(model, AtomScope.GLOBAL, Constraints()), 0
        for entry in model.checkpoint.tensors.values():
            whole += int(np.prod(entry.shape))
        budget = atom_params_budget(contest, atom_sizer(model), "5%")
        left = {}
        for total in (budget.total, budget.total - 1):
            plan = TestTarget().plan(model, contest, atom_count_budget(contest.pools, total))
            left[total] = size_report(model, plan).params_after
        assert left[budget.total] <= 0.95 * whole < left[budget.total - 1]

    def test_an_export_holds_that_many_numbers(self, model, tmp_path):
        contest = TestTarget().contest(model, AtomScope.LAYER, Constraints())
        budget = atom_params_budget(contest, atom_sizer(model), "0.3")
        plan = TestTarget().plan(model, contest, budget)
        options = ExportOptions(widths=WidthChoice(WidthMode.RAGGED))
        for _ in export_checkpoint(model, plan, tmp_path / "out", options):
            pass
        held = 0
        for shard in sorted((tmp_path / "out").glob("*.safetensors")):
            with safe_open(shard, framework="np") as file:
                held += sum(int(np.prod(file.get_slice(n).get_shape())) for n in file.keys())  # noqa: SIM118
        whole = self.whole(model)
        assert held <= 0.7 * whole < held + NEURON

    def test_what_cannot_go_is_one_line(self, model):
        contest = TestTarget().contest(model, AtomScope.GLOBAL, Constraints())
        # 24,192 of 30,088 numbers are neurons: 80.404%.
        assert (self.neurons * NEURON, self.whole(model)) == (24192, 30088)
        with pytest.raises(PlanError, match=r"the largest share that works is 80\.4%"):
            atom_params_budget(contest, atom_sizer(model), "99%")
        assert atom_params_budget(contest, atom_sizer(model), "80.4%").total == 504
        with pytest.raises(PlanError, match="'lots'"):
            atom_params_budget(contest, atom_sizer(model), "lots")
