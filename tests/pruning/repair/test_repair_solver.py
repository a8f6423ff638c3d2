"""The solver against a dense float64 solution, assembled and solved by numpy."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.drain import drain
from pruning.repair import effort, solver
from pruning.repair.effort import DAMPINGS
from pruning.repair.expert_store import ExpertStore
from pruning.repair.solver import Rows, Stage, System, fit_layer, gram_matrices, joined


def rows_of(rng, tokens, experts, neurons, width, top_k):
    """Random rows: each token goes to `top_k` experts, so some experts may have none."""
    choices = [rng.choice(experts, top_k, replace=False) for _ in range(tokens)]
    token_ids = [[t for t, chosen in enumerate(choices) if e in chosen] for e in range(experts)]
    return Rows(
        torch.from_numpy(rng.normal(size=(tokens, width))),
        tuple(torch.from_numpy(rng.normal(size=(len(ids), neurons))) for ids in token_ids),
        tuple(torch.tensor(ids, dtype=torch.int64) for ids in token_ids),
    )


def system_of(rows):
    return System(rows, drain(gram_matrices(rows, ExpertStore(), "gram")))


def fit(fitted, held):
    return drain(fit_layer(joined(fitted, held), ExpertStore()))


def change_of(fit):
    """(K, M, D)."""
    return torch.stack([change_DM.T for change_DM in fit.changes])


def dense(rows, neurons):
    """(tokens, experts x neurons): the whole system's matrix, with zeros for other experts."""
    matrix = np.zeros((len(rows.residual_TD), len(rows.scaled) * neurons))
    for expert, (scaled, tokens) in enumerate(zip(rows.scaled, rows.tokens, strict=True)):
        for row, token in zip(scaled.numpy(), tokens.tolist(), strict=True):
            matrix[token, expert * neurons : (expert + 1) * neurons] += row
    return matrix


SIZES = st.tuples(
    st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(0, 99)
)


@given(SIZES, st.sampled_from(DAMPINGS))
@settings(max_examples=60, deadline=None)
def test_enough_iterations_give_the_dense_solution(sizes, damping):
    tokens, experts, neurons, width, seed = sizes
    rng = np.random.default_rng(seed)
    rows = rows_of(rng, tokens, experts, neurons, width, min(experts, 2))
    matrix = dense(rows, neurons)
    gram = matrix.T @ matrix
    # A share of the mean diagonal, added to it.
    penalty = damping * np.trace(gram) / len(gram)
    exact = np.linalg.solve(gram + penalty * np.eye(len(gram)), matrix.T @ rows.residual_TD.numpy())
    system = system_of(rows)
    assert system.scale == pytest.approx(np.trace(gram) / len(gram))
    inverses = drain(system.inverses([0.1]))
    (change,) = system.solve([torch.arange(width)], [damping], inverses, iterations=3 * len(gram))
    np.testing.assert_allclose(change.reshape(-1, width).numpy(), exact, rtol=1e-6, atol=1e-8)
    added = rows.output(change).numpy()
    np.testing.assert_allclose(added, matrix @ exact, rtol=1e-6, atol=1e-8)


def test_rows_that_judge_are_cut_off_those_of_both():
    first, second = (rows_of(np.random.default_rng(seed), 30, 4, 3, 5, 2) for seed in (1, 2))
    split = joined(first, second)
    for part, cut in ((first, split.fitted), (second, split.held)):
        np.testing.assert_array_equal(dense(cut, 3), dense(part, 3))
        assert torch.equal(cut.residual_TD, part.residual_TD)
    kept = ExpertStore()
    others = drain(gram_matrices(first, kept, "first"))
    grams = drain(gram_matrices(second, kept, "both", others))
    for found, wanted in zip(grams, system_of(split.every).grams, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_files_and_blocks_of_columns_give_the_same_bits(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(solver, "COLUMNS", 4)
    (fitted, _), (held, _) = planted(1, 90, width=11), planted(2, 30, width=11)
    whole = fit(fitted, held)
    kept = ExpertStore(tmp_path / "files")
    stages, steps = [], fit_layer(joined(fitted, held), kept, at_once=at_once)
    on_disk = drain(steps, stages.append)
    by_expert, by_block = [1 / 3, 2 / 3, 1], {1: [4 / 11, 8 / 11, 1], 2: [8 / 11, 1]}
    shares = [by_expert, by_expert, [1], by_expert, by_block.get(at_once, [1])]
    pairs = zip(effort.CHOOSING + effort.FITTING, shares, strict=True)
    assert stages == [Stage(name, share) for name, some in pairs for share in some]
    assert (on_disk.damping, on_disk.held_out) == (whole.damping, whole.held_out)
    for found, wanted in zip(on_disk.changes, whole.changes, strict=True):
        assert torch.equal(found, wanted)
    # Matrices that are not needed any more are gone.
    assert {path.name for path in (tmp_path / "files").iterdir()} == {f"change-{e}" for e in "012"}
    kept.clear()
    assert not list(tmp_path.iterdir())


def test_what_an_earlier_run_left_in_a_file_is_replaced(tmp_path):
    rows_RM = torch.arange(6.0).reshape(2, 3)
    for _ in range(2):  # the first is killed
        kept = ExpertStore(tmp_path)
        kept.add("rows-0", rows_RM[:1])
        kept.add("rows-0", rows_RM[1:])
        assert torch.equal(kept.get("rows-0", torch.device("cpu")), rows_RM)
    kept.drop("rows-0")
    assert not list(tmp_path.iterdir())


def planted(seed, tokens, noise=0.1, width=6):
    """Rows whose residual is what a change of fixed weights adds, and noise."""
    rows = rows_of(np.random.default_rng(seed), tokens, 3, 4, width, 2)
    truth = torch.from_numpy(np.random.default_rng(7).normal(size=(3, 4, width)))
    lacking = rows.output(truth) + noise * rows.residual_TD
    return Rows(lacking, rows.scaled, rows.tokens), truth


def test_held_out_errors_are_those_of_a_solution_made_for_each_damping():
    (fitted, _), (held, _) = planted(1, 60, noise=2), planted(2, 60, noise=2)
    unchanged = float(held.residual_TD.square().sum())
    result = fit(fitted, held)
    assert result.damping == min(result.held_out, key=result.held_out.get)
    for damping, error in result.held_out.items():
        system = system_of(fitted)
        inverses = drain(system.inverses([damping]))
        (change,) = system.solve([torch.arange(6)], [damping], inverses, iterations=40)
        exact = float((held.residual_TD - held.output(change)).square().sum()) / unchanged
        assert error == pytest.approx(exact, rel=0.02)


def test_what_gains_nothing_on_other_rows_stays_as_it_is():
    # Noise alone: whatever is fitted is wrong elsewhere.
    fitted, held = (rows_of(np.random.default_rng(seed), 12, 3, 4, 6, 2) for seed in (1, 2))
    result = fit(fitted, held)
    assert min(result.held_out.values()) > 1
    assert (result.changes, result.damping) == (None, None)
    nothing = Rows(
        torch.zeros(4, 6),
        tuple(torch.zeros(0, 4) for _ in range(3)),
        (torch.zeros(0, dtype=torch.int64),) * 3,
    )
    assert fit(nothing, nothing).changes is None


@given(SIZES, st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_fit_by_blocks_of_columns_is_the_fit_of_all_at_once(sizes, most):
    tokens, experts, neurons, width, seed = sizes
    fitted, held = (
        rows_of(np.random.default_rng(number), tokens, experts, neurons, width, min(experts, 2))
        for number in (seed, seed + 100)
    )
    whole = fit(fitted, held)
    with mock.patch.object(solver, "COLUMNS", most):
        blocks = fit(fitted, held)
    assert (blocks.damping, blocks.held_out) == (whole.damping, whole.held_out)
    if whole.changes is None:
        assert blocks.changes is None
    else:
        torch.testing.assert_close(change_of(blocks), change_of(whole))


@pytest.mark.parametrize("noise", [0.1, 1, 4])
def test_the_chosen_change_is_nearly_the_dense_solution_of_all_rows(noise):
    (fitted, _), (held, _) = planted(1, 90, noise=noise), planted(2, 30, noise=noise)
    result = fit(fitted, held)
    matrix = np.concatenate([dense(fitted, 4), dense(held, 4)])
    lacking = torch.cat([fitted.residual_TD, held.residual_TD]).numpy()
    gram = matrix.T @ matrix
    penalty = result.damping * np.trace(gram) / len(gram)
    best = np.linalg.solve(gram + penalty * np.eye(len(gram)), matrix.T @ lacking)

    def objective(change):
        return ((lacking - matrix @ change) ** 2).sum() + penalty * (change**2).sum()

    change = change_of(result).reshape(-1, 6).numpy()
    nothing = objective(0 * best)
    assert (
        objective(best) <= objective(change) < objective(best) + 1e-3 * (nothing - objective(best))
    )
