"""What `kasuri.export` refuses, and which value it names."""

import pytest
import torch
from torch import nn

import kasuri
from tests.exporting.test_export import Two

X = torch.randn(6, 4)
ONES = torch.ones(4)


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
        ({"covariance": "diag"}, ValueError, "'diagonal'"),
        ({"kind": "ensemble", "members": 1}, ValueError, '"draw"'),
        ({"kind": "ensemble", "members": 2.5}, ValueError, "2.5"),
        ({"kind": "draw", "seed": "a"}, ValueError, "'a'"),
        ({"input_scaling": (0.0, 1.0)}, ValueError, "two tensors"),
        ({"input_scaling": (torch.zeros(2), torch.ones(2))}, ValueError, r"\(2,\)"),
        ({"input_scaling": (ONES, 0 * ONES)}, ValueError, "is 0"),
        ({"tolerance": -1}, ValueError, "-1"),
        ({"likelihood": "categorical"}, TypeError, "'categorical'"),
        ({"likelihood": kasuri.Categorical(), "target_scale": 2.0}, ValueError, "classes"),
        ({"target_scale": -2.0}, ValueError, "-2"),
        ({"output": lambda out: {"input": out}}, ValueError, "'input'"),
        ({"path": "ensemble"}, ValueError, "kind='ensemble'"),
        ({"path": "missing/net.onnx"}, FileNotFoundError, "missing"),
        ({"path": "."}, IsADirectoryError, "folder"),
        ({"example": "rows"}, TypeError, "str"),
        ({"example": None}, TypeError, "NoneType"),
        ({"example": X[:0]}, ValueError, "empty"),
        ({"example": {"other": X}}, ValueError, "other"),
        ({"example": X.double()}, ValueError, "float64"),
        ({"example": X.double(), "kind": "ensemble"}, ValueError, "float64"),
        ({"example": X.double(), "kind": "variance"}, ValueError, "float64"),
        ({"model": nn.Linear(4, 3), "kind": "ensemble"}, ValueError, "no posterior"),
        ({"model": "network"}, TypeError, "`export`"),
        ({"model": Two(), "example": (X[:3, :3], X)}, ValueError, r"\[3, 6\]"),
        ({"model": Branching()}, kasuri.exporting.ExportError, "`if` on the values"),
    ],
)
def test_impossible_requests_are_refused(options, error, word):
    asked = {"model": bayesian(), "example": X, **options}
    with pytest.raises(error, match=word):
        kasuri.export(asked.pop("model"), asked.pop("example"), **asked)
