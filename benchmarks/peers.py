"""Other libraries as contenders, by their public interfaces, each only if it can be imported.

Differences that the times do not show: bayesian-torch averages the KL over the weights of a layer
where the others sum it; blitz estimates its KL from the drawn weights instead of in closed form.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import nn

from benchmarks.contenders import PRIOR_SCALE, Contender, Run, with_kl


def versions() -> dict[str, str]:
    installed = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def available() -> list[Contender]:
    contenders: list[Contender] = []
    for find in PACKAGES.values():
        with suppress(ImportError):
            contenders += find()
    return contenders


def _bayesian_torch() -> list[Contender]:
    conversion = import_module("bayesian_torch.models.dnn_to_bnn")

    def build(kind: str) -> Callable[[nn.Sequential], Run]:
        def run(net: nn.Sequential) -> Run:
            options = {
                "prior_mu": 0.0,
                "prior_sigma": PRIOR_SCALE,
                "posterior_mu_init": 0.0,
                "posterior_rho_init": -4.6,  # softplus gives 0.01, kasuri's initial scale
                "type": kind,
                "moped_enable": False,
                "moped_delta": 0.5,
            }
            conversion.dnn_to_bnn(net, options)
            return with_kl(net, lambda: conversion.get_kl_loss(net))

        return run

    return [
        Contender("bayesian-torch reparameterization", build("Reparameterization"), peer=True),
        Contender("bayesian-torch flipout", build("Flipout"), peer=True),
    ]


def _linear_layers_replaced(net: nn.Sequential, make: Callable[[int, int], nn.Module]) -> list:
    return [
        make(layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else layer
        for layer in net
    ]


def _torchbnn() -> list[Contender]:
    bnn = import_module("torchbnn")

    def run(net: nn.Sequential) -> Run:
        def make(ins: int, outs: int) -> nn.Module:
            return bnn.BayesLinear(
                prior_mu=0.0, prior_sigma=PRIOR_SCALE, in_features=ins, out_features=outs
            )

        model = nn.Sequential(*_linear_layers_replaced(net, make))
        kl = bnn.BKLLoss(reduction="sum", last_layer_only=False)
        return with_kl(model, lambda: kl(model).squeeze())

    return [Contender("torchbnn", run, linear_only=True, peer=True)]


def _blitz() -> list[Contender]:
    layers, tools = import_module("blitz.modules"), import_module("blitz.utils")

    @tools.variational_estimator
    class Model(nn.Sequential):
        """The decorator writes methods into the class, so it gets one of its own."""

    def run(net: nn.Sequential) -> Run:
        def make(ins: int, outs: int) -> nn.Module:
            # its default prior is a mixture of two normals, which costs more
            prior = torch.distributions.Normal(0.0, PRIOR_SCALE)
            return layers.BayesianLinear(ins, outs, posterior_rho_init=-4.6, prior_dist=prior)

        model = Model(*_linear_layers_replaced(net, make))
        return with_kl(model, model.nn_kl_divergence)

    return [Contender("blitz", run, linear_only=True, peer=True)]


PACKAGES = {
    "bayesian-torch": _bayesian_torch,
    "torchbnn": _torchbnn,
    "blitz-bayesian-pytorch": _blitz,
}
