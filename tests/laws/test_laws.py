"""The exported laws, over every family."""

import pytest
import torch

from kasuri import testing
from kasuri.posteriors.full_normal import FullNormalPosterior
from kasuri.posteriors.matrix_normal import KroneckerPosterior
from kasuri.testing import layer_laws, posterior_laws
from tests.laws.families import BOUNDED_ENTROPY, FAMILIES
from tests.posteriors.matrix_normal.oracles import covariance

EXACT = {name: family for name, family in FAMILIES.items() if name not in BOUNDED_ENTROPY}
BOUNDED_AND_SLOW = {
    name for name in FAMILIES if name.endswith(", bounded") and "normal" in name
} - {"full normal, bounded"}
SLOW = (layer_laws.vmap_and_compile_work, layer_laws.fused_and_plain_draws_agree)
RADIAL, TIED = "radial, both sides", ("1-tied", "3-tied")
CASES = [
    pytest.param(
        family,
        law,
        id=f"{name}-{law.__name__}",
        # a compiler needs seconds; families of one kind have most of their program in common
        marks=[pytest.mark.thorough]
        * (
            (law is layer_laws.fused_and_plain_draws_agree and "," in name and name != RADIAL)
            or (law is layer_laws.vmap_and_compile_work and ("," in name or name in TIED))
        ),
    )
    for name, family in FAMILIES.items()
    for law in testing.LAWS
    if not (name in BOUNDED_ENTROPY and law is posterior_laws.kl_gradient_is_right)
    # a bound of scales is tried with the families that are quick
    if not (name in BOUNDED_AND_SLOW and law in SLOW)
]


@pytest.mark.parametrize(("family", "law"), CASES)
def test_law(family, law):
    torch.manual_seed(0)
    law(family)


@pytest.mark.parametrize("family", EXACT.values(), ids=EXACT)
def test_entropy(family):
    torch.manual_seed(0)
    correlated = isinstance(family(torch.zeros(2, 2)), KroneckerPosterior | FullNormalPosterior)
    posterior_laws.entropy_is_that_of_the_dense_normal(family, covariance if correlated else None)
