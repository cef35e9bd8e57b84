"""Networks that return several tensors: a file puts all of them out, by name."""

from typing import NamedTuple

import onnxruntime
import pytest
import torch
from torch import nn

import kasuri
from tests.exporting.files import run_file


class Pair(NamedTuple):
    logits: torch.Tensor
    value: torch.Tensor


def as_tuple(logits, value):
    return logits, None, value


def as_mapping(logits, value):
    return {"logits": logits, "value": value}


FORMS = {
    as_tuple: ("output_0", "output_2"),
    as_mapping: ("logits", "value"),
    Pair: ("logits", "value"),
}


class TwoHeads(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.trunk, self.policy, self.value = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        h = torch.relu(self.trunk(x))
        return self.form(self.policy(h), self.value(h))


def bayesian(form=as_mapping):
    torch.manual_seed(0)
    return kasuri.bayesianize(TwoHeads(form), kasuri.KTied(rank=1, scale=0.2)).eval()


def tensors(out):
    values = out.values() if isinstance(out, dict) else out
    return [one.detach() for one in values if one is not None]


def sizes(file):
    return [made.shape for made in onnxruntime.InferenceSession(file.data).get_outputs()]


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_all_outputs_are_in_the_file_under_their_names(form):
    bnn, example = bayesian(form), torch.randn(1, 4)
    file, stored = (kasuri.export(bnn, example, format=format) for format in ("onnx", "torch"))
    assert file.outputs == stored.outputs == FORMS[form]
    assert sizes(file) == [["batch", 3], ["batch", 1]]
    for count in (1, 7):
        x = torch.randn(count, 4)
        for made in (file, stored):
            close(list(run_file(made, x).values()), tensors(bnn(x)))


def test_an_ensemble_has_a_mean_and_a_spread_for_each():
    bnn, x = bayesian(), torch.randn(6, 4)
    file = kasuri.export(bnn, x, kind="ensemble", members=4, seed=3)
    assert file.outputs == ("logits_mean", "logits_std", "value_mean", "value_std")
    found = run_file(file, x)
    for name in ("logits", "value"):
        alone = kasuri.predict(bnn, x, samples=4, seed=3, output=lambda out, name=name: out[name])
        close(found[f"{name}_mean"], alone.mean)
        close(found[f"{name}_std"], alone.std)


def test_one_named_output_is_enough_for_a_likelihood():
    bnn, x = bayesian(lambda logits, value: {"logits": logits}), torch.randn(6, 4)
    assert kasuri.export(bnn, x, format="torch").outputs == ("logits",)
    likelihood = kasuri.Categorical()
    options = {"kind": "ensemble", "members": 2, "likelihood": likelihood, "format": "torch"}
    file = kasuri.export(bnn, x, **options)
    assert file.outputs == ("mean", "std", "entropy", "mutual_information")
    output = {"output": lambda out: out["logits"]}
    pred = kasuri.predict(bnn, x, samples=2, seed=0, likelihood=likelihood, **output)
    close(run_file(file, x)["mean"], pred.mean)


def test_an_output_that_is_the_same_for_every_batch_keeps_its_size():
    bnn = bayesian(lambda logits, value: (logits, torch.arange(2.0)))
    assert sizes(kasuri.export(bnn, torch.randn(5, 4))) == [["batch", 3], [2]]


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "variance"},
        {"kind": "ensemble", "likelihood": kasuri.Categorical()},
        {"target_mean": 1.0},
    ],
)
def test_where_one_output_is_meant_you_are_asked_which(options):
    bnn, x = bayesian(), torch.randn(5, 4)
    with pytest.raises(ValueError, match="'logits', 'value'"):
        kasuri.export(bnn, x, **options)
    if options.get("kind") != "variance":  # of which test_export takes an output
        take = {"output": lambda out: out["logits"], "format": "torch"}
        assert kasuri.export(bnn, x, **take, **options).outputs


def test_what_no_file_can_put_out_is_named():
    x = torch.randn(5, 4)
    with pytest.raises(TypeError, match="tuple 'rest'"):
        kasuri.export(bayesian(lambda a, b: {"logits": a, "rest": (a, b)}), x)
    with pytest.raises(TypeError, match="nothing"):
        kasuri.export(bayesian(lambda a, b: ()), x)
    assert kasuri.export(bayesian(lambda a, b: (a, a.argmax(-1))), x).error <= 1e-5
