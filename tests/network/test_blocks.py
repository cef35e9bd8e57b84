"""Blocks of attention, and the estimator that families choose."""

from torch import nn

import kasuri


def test_blocks_of_attention_are_the_heads_of_its_maps() -> None:
    for net, blocks in (
        (nn.MultiheadAttention(8, 2), {"in_proj_weight": (6, 4, 8)}),
        (
            nn.MultiheadAttention(8, 2, kdim=5, vdim=3),
            {
                "q_proj_weight": (2, 4, 8),
                "k_proj_weight": (2, 4, 5),
                "v_proj_weight": (2, 4, 3),
            },
        ),
    ):
        bnn = kasuri.bayesianize(net, kasuri.MatrixNormal(), blocks=True)
        shapes = {
            name: tuple(q.shape) for name, q in kasuri.named_posteriors(bnn) if len(q.shape) == 3
        }
        assert shapes == blocks
