"""What `kasuri.export` refuses, and which value it names."""

import pytest
import torch
from torch import nn

import kasuri
from tests.exporting.test_export import Two

X = torch.randn(6, 4)


def bayesian():
    return kasuri.bayesianize(nn.Linear(4, 3), kasuri.MeanField())


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"kind": "variances"}, ValueError, "'variance'"),
        ({"format": "h5"}, ValueError, "'onnx'"),
        ({"kind": "ensemble", "members": 2.5}, ValueError, "2.5"),
        ({"likelihood": kasuri.Categorical(), "target_scale": 2.0}, ValueError, "classes"),
        ({"target_scale": -2.0}, ValueError, "-2"),
        ({"output": lambda out: {"input": out}}, ValueError, "'input'"),
        ({"path": "missing/net.onnx"}, FileNotFoundError, "missing"),
        ({"example": "rows"}, TypeError, "str"),
        ({"example": None}, TypeError, "NoneType"),
        ({"example": X[:0]}, ValueError, "empty"),
        ({"example": {"other": X}}, ValueError, "other"),
        ({"example": X.double()}, ValueError, "float64"),
        ({"example": X.double(), "kind": "ensemble"}, ValueError, "float64"),
        ({"example": X.double(), "kind": "variance"}, ValueError, "float64"),
        ({"model": nn.Linear(4, 3), "kind": "ensemble"}, ValueError, "no Bayesian layer"),
        ({"model": "network"}, TypeError, "`export`"),
        ({"model": Two(), "example": (X[:3, :3], X)}, ValueError, r"\[3, 6\]"),
        ({"model": Branching()}, kasuri.exporting.ExportError, "`if` on the values"),
    ],
)
def test_impossible_requests_are_refused(options, error, word):
    asked = {"model": bayesian(), "example": X, **options}
    with pytest.raises(error, match=word):
        kasuri.export(asked.pop("model"), asked.pop("example"), **asked)
