"""Which neurons stay, by which number; pieces of files; what the width modes save."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from atom_cases import atomic_plan, select_atoms
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.drain import drain
from analysis.errors import PlanError
from analysis.model import load_model_index
from analysis.ranking.norms import neuron_norms
from families.configs import BY_NAME, CASES, tiny_model
from families.physical import block_of
from families.plain import matrices_of
from pruning import load_pruned
from pruning.atoms.selection import AtomScope
from pruning.atoms.widths import WidthChoice, WidthMode
from pruning.constraints import Constraints
from pruning.plan import PruningPlan, model_ref
from pruning.sizes import size_report
from pruning.surgery.export import ExportOptions, export_checkpoint
from pruning.surgery.pieces import Gather
from pruning.surgery.width_sizes import width_options

SCORES = {
    1: (np.array([5.0, 1.0, 4.0, 2.0]), np.array([9.0, 9.0, 0.5, 9.0])),
    3: (np.array([3.0, 0.1, 8.0, 7.0]), np.array([0.2, 0.3, 0.4, 6.0])),
}


def kept_of(atoms, scores=SCORES):
    """Every expert's neurons that stay."""
    return {
        (layer, e): atoms.get(layer, {}).get(e, tuple(range(len(values))))
        for layer, experts in scores.items()
        for e, values in enumerate(experts)
    }


class TestSelection:
    @pytest.mark.parametrize(
        ("scope", "expected"),
        [
            # By hand: 50% of 4 in each expert; of 8 in each layer; of 16 in all.
            ("expert", {(1, 0): (0, 2), (1, 1): (0, 1), (3, 0): (2, 3), (3, 1): (2, 3)}),
            ("layer", {(1, 0): (0,), (1, 1): (0, 1, 3), (3, 0): (0, 2, 3), (3, 1): (3,)}),
            ("global", {(1, 0): (0, 2), (1, 1): (0, 1, 3), (3, 0): (2, 3), (3, 1): (3,)}),
        ],
    )
    def test_by_hand(self, scope, expected):
        assert kept_of(select_atoms(SCORES, Fraction(1, 2), AtomScope(scope))) == expected

    def test_blocks_by_hand(self):
        # Pairs, ascending. Layer 1: (1 + 2, 4 + 5) and (.5 + 9, 9 + 9), so expert 0 loses all.
        # Layer 3: (.1 + 3, 7 + 8) and (.2 + .3, .4 + 6), so each loses its first pair.
        found = select_atoms(SCORES, Fraction(1, 2), AtomScope.LAYER, Constraints(multiple_of=2))
        expected = {(1, 0): (), (1, 1): (0, 1, 2, 3), (3, 0): (2, 3), (3, 1): (2, 3)}
        assert kept_of(found) == expected
        assert 1 not in found[1]  # keeps all, so the plan does not name it

    def test_nothing_but_numbers(self):
        with pytest.raises(PlanError, match="layer 4 is no finite number"):
            select_atoms({4: (np.array([1.0, math.nan]),)}, Fraction(1, 2), AtomScope.GLOBAL)
        with pytest.raises(PlanError, match="Multiples of 0"):
            Constraints(multiple_of=0)


class TestNorms:
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_against_the_matrices_of_the_model(self, atom_source, case):
        source = atom_source(case)
        found = drain(neuron_norms(source.described))
        assert sorted(found) == list(case.sparse)
        for layer in case.sparse:
            module = block_of(source.model, case, layer).experts
            for expert in range(case.experts):
                m = matrices_of(case.model_type, module, expert)
                wanted = m.up.double().norm(dim=0) * m.down.double().norm(dim=1)
                if m.gate is not None:
                    wanted = wanted * m.gate.double().norm(dim=0)
                np.testing.assert_allclose(found[layer][expert], wanted.numpy(), rtol=1e-12)

    def test_bfloat16(self, tmp_path):
        model = tiny_model(BY_NAME["olmoe"]).to(torch.bfloat16)
        model.save_pretrained(tmp_path)
        found = drain(neuron_norms(load_model_index(str(tmp_path))))
        m = matrices_of("olmoe", model.model.layers[1].mlp.experts, 2)
        wanted = (m.gate.double().norm(dim=0) * m.up.double().norm(dim=0)) * m.down.double().norm(
            dim=1
        )
        np.testing.assert_allclose(found[1][2], wanted.numpy(), rtol=1e-12)


class TestGather:
    @given(
        rows=st.integers(1, 5),
        count=st.integers(0, 9),
        size=st.sampled_from([1, 2, 3, 4, 8, 600]),
        limit=st.sampled_from([1, 7, 64, 5000, 1 << 20]),
        data=st.data(),
    )
    @settings(max_examples=120, deadline=None)
    def test_against_indexing(self, tmp_path_factory, rows, count, size, limit, data):
        index = np.array(
            data.draw(st.lists(st.integers(-1, count - 1), max_size=12)), dtype=np.int32
        )
        content = np.random.default_rng(0).integers(1, 256, rows * count * size + 11, np.uint8)
        path = tmp_path_factory.mktemp("gather") / "file"
        path.write_bytes(content.tobytes())
        gather = Gather(7, rows, count, size, index)
        parts = list(gather.parts(limit))
        with path.open("rb") as file:
            found = b""
            for part in parts:
                buffer = bytearray(part.nbytes)
                part.read(file.fileno(), memoryview(buffer), "file")
                found += bytes(buffer)
        source = content[7 : 7 + rows * count * size].reshape(rows, count, size)
        wanted = np.zeros((rows, len(index), size), np.uint8)
        wanted[:, index >= 0] = source[:, index[index >= 0]]
        assert found == wanted.tobytes()
        assert gather.nbytes == wanted.nbytes
        assert all(part.nbytes <= max(limit, size) for part in parts)


class TestSizes:
    @pytest.mark.parametrize("name", ["olmoe", "deepseek_v2", "gpt_oss", "jamba", "nemotron_h"])
    def test_options_are_what_exports_have_and_models_hold(self, atom_source, name, tmp_path):
        source = atom_source(BY_NAME[name])
        options = width_options(source.described, source.plan)
        assert [option.mode for option in options] == list(WidthMode)
        for option in options:
            choice = ExportOptions(widths=WidthChoice(option.mode))
            path = tmp_path / option.mode
            if option.refused:
                with pytest.raises(PlanError) as error:
                    drain(export_checkpoint(source.described, source.plan, path, choice))
                assert str(error.value) == option.refused
                continue
            drain(export_checkpoint(source.described, source.plan, path, choice))
            on_disk = sum(file.stat().st_size for file in path.glob("*.safetensors"))
            model = load_pruned(path)
            held = {t.data_ptr(): t.nbytes for t in model.state_dict().values()}
            assert option.disk_bytes == on_disk
            assert option.loaded_bytes == sum(held.values())
            assert option.stock == (option.mode is WidthMode.UNIFORM)
            assert option.widths == ((16, 16) if option.stock else (8, 16))

    def test_the_report_counts_what_stays_of_each_expert(self, atom_source):
        source = atom_source(BY_NAME["olmoe"])
        kept = sum(len(ids) for e in source.plan.kept_atoms.values() for ids in e.values())
        report = size_report(source.described, source.plan)
        experts = report.table.set_index("part").loc["routed experts"]
        assert experts["params_before"] == 2 * 7 * 24 * 48  # 3 matrices of 16 a neuron
        assert experts["params_after"] == kept * 48
        assert report.experts_removed == 0
        assert report.params_before - report.params_after == (2 * 7 * 24 - kept) * 48
        # On average a token's 2 of 7 experts hold 2/7 of what is left.
        per_layer = [sum(map(len, e.values())) * 48 for e in source.plan.kept_atoms.values()]
        idle = sum(round(each * 5 / 7) for each in per_layer)
        assert report.active_after == pytest.approx(report.params_after - idle, abs=1)

    def test_plans_of_whole_experts_have_no_widths(self, atom_source):
        source = atom_source(BY_NAME["olmoe"])
        plan = PruningPlan(model_ref(source.described), {0: (0, 1)})
        with pytest.raises(PlanError, match="removes whole"):
            width_options(source.described, plan)

    def test_a_case_plan_is_reproducible(self, atom_source):
        source = atom_source(BY_NAME["olmoe"])
        assert atomic_plan(source.described, source.case).digest == source.plan.digest
