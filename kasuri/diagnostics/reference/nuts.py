"""The no-U-turn sampler of Pyro on the random weights of a network."""

import torch
from torch import Tensor

from kasuri.diagnostics.reference.joint import LogJoint, Truth
from kasuri.streams import globally_seeded


def nuts(
    joint: LogJoint,
    samples: int = 500,
    warmup: int = 500,
    seed: int = 0,
    max_tree_depth: int = 8,
) -> Truth:
    """Draws by Hamiltonian Monte Carlo with adapted step and path length (extra `reference`).

    One chain, from the mean of the objective's posterior; all training data at every step, so it is for
    small networks. `notes` tells the smallest effective number of draws and the largest r-hat (of
    the halves of the chain, 1 if they agree) over the weights. A network has many equivalent posteriors
    (its hidden units can change places), of which a chain usually sees one: compare
    predictions rather than weights then.

    Args:
        joint: the density to sample.
        samples: draws kept.
        warmup: draws that adapt the step and are thrown away.
        seed: of the chain.
        max_tree_depth: at most 2 to this power gradients per draw.

    Examples:
        >>> import kasuri
        >>> from torch import nn
        >>> bnn = kasuri.bayesianize(nn.Linear(1, 1, bias=False), kasuri.MeanField())
        >>> elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.Normal(1.0), num_data=3)
        >>> joint = LogJoint(elbo, (torch.ones(3, 1), torch.full((3, 1), 2.0)))
        >>> truth = nuts(joint, samples=200, warmup=100)
        >>> abs(float(truth.weights.mean()) - 1.5) < 0.2
        True
    """
    try:
        from pyro.infer import MCMC, NUTS
    except ImportError:
        raise ImportError(
            "kasuri.reference.nuts needs pyro: pip install kasuri[reference]"
        ) from None

    def potential(values: dict[str, Tensor]) -> Tensor:
        return -joint(values["weights"])

    start = joint.mean()
    kernel = NUTS(potential_fn=potential, max_tree_depth=max_tree_depth)
    chain = MCMC(
        kernel,
        num_samples=samples,
        warmup_steps=warmup,
        initial_params={"weights": start},
        disable_progbar=True,
    )
    with globally_seeded(seed, start.device):
        chain.run()
    told = chain.diagnostics()["weights"]
    notes = {
        "smallest_n_eff": float(torch.as_tensor(told["n_eff"]).min()),
        "largest_r_hat": float(torch.as_tensor(told["r_hat"]).max()),
    }
    return Truth(chain.get_samples()["weights"].detach(), notes=notes)
