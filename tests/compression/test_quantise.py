"""Eight-bit networks: what torch's tools get wrong stays as it is, or is said."""

import warnings

import pytest
import torch
from torch import nn

import kasuri


def away(quick: nn.Module, net: nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        return float((quick(x) - net(x)).norm() / net(x).norm())


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Sequential(nn.ConvTranspose2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), (64, 2, 5, 5)),
        (nn.Sequential(nn.ConvTranspose1d(2, 4, 3), nn.ReLU()), (64, 2, 5)),
        (nn.Sequential(nn.Linear(3, 8), nn.PReLU(), nn.Linear(8, 2)), (64, 3)),
    ],
)
def test_layers_that_torch_quantises_wrongly_stay(net, shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    assert away(kasuri.quantise(net.eval(), x), net, x) < 0.05


def test_transformer_layers_run_after_dynamic_quantisation():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(5, 4, 8)
    quick = kasuri.quantise(net, x, "dynamic")
    assert isinstance(quick.layers[0].linear1, torch.ao.nn.quantized.dynamic.Linear)
    assert 0 < away(quick, net, x) < 0.1


def test_several_inputs_are_one_batch():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, x, y):
            return self.a(x) + self.b(y)

    net, batch = Sum().eval(), (torch.randn(50, 3), torch.randn(50, 2))
    one, two = kasuri.quantise(net, batch), kasuri.quantise(net, [batch])
    torch.testing.assert_close(one(*batch), two(*batch))
    with pytest.raises(TypeError, match="inputs=NoneType"):
        kasuri.quantise(net, None)
    with pytest.raises(TypeError, match=r"quantise\(str\)"):
        kasuri.quantise("net", batch)


def test_rough_outputs_are_told():
    """Inputs a thousand times as large as the rest: eight bits know nothing but them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
    small, large = torch.randn(50, 2), torch.randn(50, 2) * 1e4
    with pytest.warns(UserWarning, match="differ by"):
        kasuri.quantise(net, [large, small])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kasuri.quantise(net, [small])
