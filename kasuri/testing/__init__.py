"""The laws every posterior family obeys, as functions you can run on a family of your own.

    import kasuri.testing
    kasuri.testing.check_family(MyFamily(rank=3))

Structure parameters are randomised before a law is tested, since many mistakes cancel at the
symmetric initial values. Monte Carlo laws allow six standard errors.
"""

from functools import partial

import torch

from kasuri.posteriors.base import Family
from kasuri.testing import layer_laws, posterior_laws
from kasuri.testing.posterior_laws import Covariance as Covariance
from kasuri.testing.posterior_laws import Law as Law
from kasuri.testing.posterior_laws import randomised as randomised


def check_family(family: Family, covariance: Covariance | None = None) -> None:
    """Run every law on a family; an AssertionError says which one is broken.

    Args:
        family: the family with its options.
        covariance: from a posterior to the dense covariance of W.reshape(-1), the oracle for its
            entropy; families with independent weights need none.

    Examples:
        >>> import kasuri
        >>> check_family(kasuri.KTied(rank=2))
    """
    entropy = posterior_laws.entropy_is_that_of_the_dense_normal
    laws = {law.__name__: law for law in LAWS}
    for name, law in (laws | {entropy.__name__: partial(entropy, covariance=covariance)}).items():
        torch.manual_seed(0)
        try:
            law(family)
        except AssertionError as error:
            raise AssertionError(f"{family} breaks the law {name!r}: {error}") from error


LAWS: tuple[Law, ...] = (
    posterior_laws.samples_have_the_stated_moments,
    posterior_laws.prior_expectation_is_exact,
    posterior_laws.squared_norm_is_mean_square,
    posterior_laws.kl_is_never_negative_and_zero_at_the_prior,
    posterior_laws.initial_scale_is_the_one_asked_for,
    posterior_laws.kl_gradient_is_right,
    posterior_laws.dtype_follows,
    layer_laws.estimators_agree,
    layer_laws.fused_and_plain_draws_agree,
    layer_laws.vanishing_scale_is_the_layer_itself,
    layer_laws.collapse_undoes_bayesianize,
    layer_laws.gradients_reach_every_parameter,
    layer_laws.copies_and_files_are_faithful,
    layer_laws.vmap_and_compile_work,
    layer_laws.extreme_parameters_stay_finite,
)
