"""Checkpoints pruned as other programs do it become the plan of what those kept, in every family.

The model is cut in memory by its module tree, its configuration counts what is left, and
`save_pretrained` writes it, in the layout of the original or in the other one.
"""

import shutil

import numpy as np
import pytest
from exports import edit_tensors, shards_of

from analysis.drain import drain
from analysis.errors import CheckpointError
from analysis.model.opening import load_model_index
from families.configs import BY_NAME, KINDS
from families.physical import physically_pruned
from pruning.surgery.matching import match_checkpoints

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def drawn(case):
    """Layer -> as many experts in each, of each group of the router, drawn for the layer."""
    draw, size = np.random.default_rng(case.experts), case.experts // case.groups
    keep = max(case.smallest, case.experts // 2) // case.groups
    return {
        layer: tuple(
            group * size + expert
            for group in range(case.groups)
            for expert in sorted(draw.choice(size, keep, replace=False).tolist())
        )
        for layer in case.sparse
    }


def save_cut(built, case, kept, path, *, layout):
    """What a script of a peer writes."""
    pruned = physically_pruned(built(case).model, case, kept)
    for config in (pruned.config, pruned.config.get_text_config()):
        for key in _COUNTS:
            if getattr(config, key, None) is not None:
                setattr(config, key, len(kept[case.sparse[0]]))
    pruned.save_pretrained(path, save_original_format=layout == "experts")
    return load_model_index(str(path))


def check(built, case, path, *, layout, written):
    kept = drawn(case)
    original = built(case).described(layout)
    match = drain(match_checkpoints(original, save_cut(built, case, kept, path, layout=written)))
    assert match.kept == kept
    for layer in match.layers:
        assert len(layer.by_bytes) == len(kept[layer.layer])
        assert layer.experts == kept[layer.layer]
        assert not layer.disputed
    # Tables of token ids list the experts under their new ids.
    others = {kind: counts for kind, counts in match.others.items() if "token ids" not in kind}
    assert not any(counts.differ for counts in others.values())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=() if case in KINDS else pytest.mark.slow)
        for case in BY_NAME.values()
    ],
)
def test_the_plan_is_what_a_script_kept(built, case, tmp_path):
    check(built, case, tmp_path / "cut", layout="experts", written="experts")


@pytest.mark.parametrize("layouts", [("experts", "stacked"), ("stacked", "experts")])
@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3-groups", "qwen2_moe"])
def test_layouts_may_differ(built, name, layouts, tmp_path):
    layout, written = layouts
    check(built, BY_NAME[name], tmp_path / "cut", layout=layout, written=written)


def test_a_projection_inside_a_stack_is_told_from_its_neighbour(built, tmp_path):
    """Stacks of GPT-OSS are (in, out), and columns of gate and up take turns."""
    original = built(BY_NAME["gpt_oss"]).described()
    shutil.copytree(original.checkpoint.path, tmp_path / "refitted")

    def refit(tensors):
        if (name := "model.layers.0.mlp.experts.gate_up_proj") in tensors:
            tensors[name][1, :, 1::2] += 0.5
        return tensors

    for shard in shards_of(tmp_path / "refitted"):
        edit_tensors(shard, refit)
    match = drain(match_checkpoints(original, load_model_index(str(tmp_path / "refitted"))))
    assert [dict(layer.changed) for layer in match.layers if layer.changed] == [{1: ("up",)}]


def test_families_that_differ_are_refused(built):
    first, second = (built(BY_NAME[name]).described() for name in ("olmoe", "mixtral"))
    with pytest.raises(CheckpointError, match="has the model type olmoe and"):
        drain(match_checkpoints(first, second))
