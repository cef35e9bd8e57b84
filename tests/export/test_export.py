"""Exported files compute what the network computes, without kasuri."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import kasuri
from kasuri.export import export as exporting
from tests.prediction.moments.nets import NAMES, make

ROOT = Path(__file__).parents[2]
LONG = ("lenet", "lstm", "transformer")  # to convert with a variance


def onnx_run(data: bytes, *inputs: torch.Tensor) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]
    fed = {name: one.numpy() for name, one in zip(names, inputs, strict=True)}
    return dict(zip(outputs, session.run(outputs, fed), strict=True))


def differs(found: np.ndarray, expected: torch.Tensor) -> float:
    assert tuple(found.shape) == tuple(expected.shape)
    return float((torch.from_numpy(found) - expected).abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_one_network_in_onnx(name):
    net, x = make(name)
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2, scale=0.1)).eval()
    mean = kasuri.export(bnn, x)
    assert mean.error <= 1e-5
    for count in (1, 6, 11):
        batch = x[torch.arange(count) % len(x)]
        assert differs(onnx_run(mean.data, batch)["output"], bnn(batch).detach()) <= 1e-5
    onnx.checker.check_model(onnx.load_model_from_string(mean.data))


@pytest.mark.parametrize("name", NAMES)
def test_one_network_for_torch(name):
    net, x = make(name)
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2, scale=0.1)).eval()
    module = torch.export.load(io.BytesIO(kasuri.export(bnn, x, format="torch").data)).module()
    for count in (1, 6, 11):
        batch = x[torch.arange(count) % len(x)]
        assert torch.allclose(module(batch)[0], bnn(batch), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_a_draw_is_a_function_of_the_posterior(form, name):
    net, x = make(name)
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2, scale=0.1))
    draw = kasuri.export(bnn, x, kind="draw", seed=3, format=form)
    with torch.no_grad(), kasuri.frozen(bnn.eval(), 3):
        expected = bnn(x)
    if form == "onnx":
        assert differs(onnx_run(draw.data, x)["output"], expected) <= 1e-5
    else:
        (found,) = torch.export.load(io.BytesIO(draw.data)).module()(x)
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_an_ensemble_says_what_predict_says(name, form):
    net, x = make(name)
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.1))
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=10)
    file = kasuri.export(elbo, x, kind="ensemble", members=3, seed=5, format=form)
    assert file.error <= 1e-5
    batch = x[torch.arange(9) % len(x)]
    pred = kasuri.predict(elbo, batch, samples=3, seed=5)
    if form == "onnx":
        found = onnx_run(file.data, batch)
    else:
        outputs = torch.export.load(io.BytesIO(file.data)).module()(batch)
        found = dict(zip(file.outputs, (one.numpy() for one in outputs), strict=True))
    assert list(found) == ["mean", "std", "entropy", "mutual_information"]
    for word, value in found.items():
        assert differs(value, getattr(pred, word)) <= 1e-5


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("small", "torch"),
        *(
            pytest.param(name, "onnx", marks=[pytest.mark.thorough] * (name in LONG))
            for name in NAMES
        ),
    ],
)
def test_a_variance_says_what_predict_moments_says(name, form):
    small = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net, x = (small, torch.randn(6, 3)) if name == "small" else make(name)
    x = x[:, :2] if name == "lstm" else x  # every step of a sequence is a hundred operations
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2, scale=0.1))
    likelihood = kasuri.Categorical()
    file = kasuri.export(bnn, x, kind="variance", likelihood=likelihood, format=form)
    assert file.error <= 1e-5
    batch = x[torch.arange(8) % len(x)]
    pred = kasuri.predict_moments(bnn, batch, likelihood=likelihood)
    if form == "onnx":
        found = list(onnx_run(file.data, batch).values())
    else:
        found = [one.numpy() for one in torch.export.load(io.BytesIO(file.data)).module()(batch)]
    for word, value in zip(file.outputs, found, strict=True):
        assert differs(value, getattr(pred, word)) <= 1e-5


def test_a_diagonal_variance():
    net, x = make("mlp")
    bnn = kasuri.bayesianize(net, kasuri.MatrixNormal(scale=0.1))
    file = kasuri.export(bnn, x, kind="variance", covariance="diagonal")
    pred = kasuri.predict_moments(bnn, x, covariance="diagonal")
    assert file.outputs == ("mean", "std")
    assert differs(onnx_run(file.data, x)["std"], pred.std) <= 1e-5


@pytest.mark.parametrize(
    ("likelihood", "kind"),
    [
        (kasuri.Gaussian(0.3), "ensemble"),
        (kasuri.GammaGaussian(), "ensemble"),
        (kasuri.HeteroscedasticGaussian(), "ensemble"),
        (kasuri.Bernoulli(), "ensemble"),
        (kasuri.HeteroscedasticGaussian(), "variance"),
    ],
)
def test_every_likelihood(likelihood, kind):
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(nn.Sequential(nn.Linear(3, 2)), kasuri.MeanField(scale=0.2))
    elbo = kasuri.ELBO(bnn, likelihood, kasuri.Normal(1.0), num_data=10)
    x = torch.randn(5, 3)
    file = kasuri.export(elbo, x, kind=kind, members=4, format="torch")
    pred = (
        kasuri.predict(elbo, x, samples=4, seed=0)
        if kind == "ensemble"
        else kasuri.predict_moments(elbo, x)
    )
    outputs = torch.export.load(io.BytesIO(file.data)).module()(x)
    for word, value in zip(file.outputs, outputs, strict=True):
        assert torch.allclose(value, getattr(pred, word), atol=1e-5), word


def test_units_of_the_target():
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(nn.Linear(3, 1), kasuri.MeanField(scale=0.2))
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(0.3), kasuri.Normal(1.0), num_data=10)
    x = torch.randn(5, 3)
    units = {"target_mean": 7.0, "target_scale": 2.5}
    file = kasuri.export(elbo, x, kind="ensemble", members=4, format="torch", **units)
    pred = kasuri.predict(elbo, x, samples=4, seed=0)
    mean, std, noise, spread = torch.export.load(io.BytesIO(file.data)).module()(x)
    assert torch.allclose(mean, pred.mean * 2.5 + 7)
    assert torch.allclose(std, pred.std * 2.5)
    assert torch.allclose(noise, pred.aleatoric * 2.5**2)
    assert torch.allclose(spread, pred.epistemic * 2.5**2)
    single = kasuri.export(elbo, x, format="torch", **units)
    (output,) = torch.export.load(io.BytesIO(single.data)).module()(x)
    assert torch.allclose(output, bnn.eval()(x) * 2.5 + 7)


def test_an_estimator_exports_what_it_predicts(tmp_path):
    from kasuri.sklearn import BayesianClassifier, BayesianRegressor

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 3)) * [1, 100, 0.01] + [5, 0, 1]
    target = 300 + 20 * rows[:, 0] + rng.normal(size=40)
    options = {"max_epochs": 2, "n_samples": 5, "random_state": 0}
    model = BayesianRegressor((6,), **options).fit(rows, target)
    model.export(tmp_path / "model.onnx")
    found = onnx_run((tmp_path / "model.onnx").read_bytes(), torch.from_numpy(rows))
    mean, std = model.predict(rows, return_std=True)
    assert np.allclose(found["mean"][:, 0], mean, rtol=1e-9)
    assert np.allclose(found["std"][:, 0], std, rtol=1e-9)
    labels = np.where(target > 400, "high", "low")
    labels[:5] = "high"
    classifier = BayesianClassifier((6,), **options).fit(rows, labels)
    found = onnx_run(classifier.export().data, torch.from_numpy(rows))
    assert np.allclose(found["mean"], classifier.predict_proba(rows), atol=1e-9)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, left, right):
        return {"logits": self.a(left) + self.b(right)}


def test_several_named_inputs_and_an_output_to_take_out():
    bnn = kasuri.bayesianize(Two(), kasuri.MeanField(scale=0.1)).eval()
    x = {"right": torch.randn(4, 4), "left": torch.randn(4, 3)}

    def take(out):
        return out["logits"]

    for kind in ("ensemble", "variance"):
        file = kasuri.export(bnn, x, kind=kind, members=2, output=take, format="torch")
        assert file.inputs == ("right", "left")
        assert file.metadata["kasuri.inputs"] == "right, left"
    named = kasuri.export(bnn, x, output=take, input_names=["r", "l"])
    found = onnx_run(named.data, x["right"], x["left"])["output"]
    assert differs(found, take(bnn(**x)).detach()) <= 1e-5


def test_what_a_file_says_about_itself(tmp_path):
    net, x = make("mlp")
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2))
    file = kasuri.export(bnn, x, tmp_path / "net.onnx", kind="ensemble", members=2, seed=9)
    assert (tmp_path / "net.onnx").read_bytes() == file.data
    session = onnxruntime.InferenceSession(file.data)
    told = session.get_modelmeta().custom_metadata_map
    assert told["kasuri.kind"] == "ensemble"
    assert told["kasuri.members"] == "2"
    assert told["kasuri.seed"] == "9"
    assert told["kasuri.family"] == "KTied, MeanField"
    assert told["kasuri.version"] == kasuri.__version__
    assert told["kasuri.outputs"] == "mean, std"
    assert session.get_inputs()[0].shape[0] == "batch"
    stored = kasuri.export(bnn, x, kind="draw", format="torch")
    extra = {"kasuri.json": ""}
    torch.export.load(io.BytesIO(stored.data), extra_files=extra)
    assert json.loads(extra["kasuri.json"])["kasuri.kind"] == "draw"


def test_an_ordinary_network_and_a_batch_of_one():
    net, x = make("lenet")
    found = onnx_run(kasuri.export(net.train(), x[:1]).data, x)["output"]
    assert net.training
    assert differs(found, net.eval()(x).detach()) <= 1e-5


def test_nothing_is_written_when_the_file_is_wrong(tmp_path, monkeypatch):
    net, x = make("mlp")
    path = tmp_path / "net.onnx"
    path.write_text("old")
    monkeypatch.setattr(exporting, "largest_error", lambda *_: 0.5)
    with pytest.raises(
        kasuri.ExportError, match=r"differs from PyTorch by 0\.5.*nothing was written"
    ):
        kasuri.export(net, x, path)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["net.onnx"]
    assert kasuri.export(net, x, path, verify=False).error is None
    assert path.read_bytes() != b"old"


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_refusals_are_sentences():
    net, x = make("mlp")
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    with pytest.raises(ValueError, match="no posterior to draw from"):
        kasuri.export(net, x, kind="ensemble")
    with pytest.raises(ValueError, match="did you mean 'variance'"):
        kasuri.export(bnn, x, kind="variances")
    with pytest.raises(ValueError, match="there is: 'onnx', 'torch'"):
        kasuri.export(bnn, x, format="h5")
    with pytest.raises(ValueError, match='one function is kind="draw"'):
        kasuri.export(bnn, x, kind="ensemble", members=1)
    with pytest.raises(ValueError, match="at least 2"):
        kasuri.export(bnn, x, kind="ensemble", members=2.5)
    with pytest.raises(ValueError, match="seed='a'"):
        kasuri.export(bnn, x, kind="draw", seed="a")
    with pytest.raises(ValueError, match="two tensors"):
        kasuri.export(bnn, x, input_scaling=(0.0, 1.0))
    with pytest.raises(ValueError, match="tolerance=-1"):
        kasuri.export(bnn, x, tolerance=-1)
    with pytest.raises(ValueError, match="classes have no unit"):
        kasuri.export(bnn, x, kind="ensemble", likelihood=kasuri.Categorical(), target_scale=2.0)
    with pytest.raises(ValueError, match="positive"):
        kasuri.export(bnn, x, target_scale=-2.0)
    with pytest.raises(TypeError, match="have a method `export`"):
        kasuri.export("network", x)
    with pytest.raises(TypeError, match="give a tensor"):
        kasuri.export(bnn, "rows")
    with pytest.raises(TypeError, match="give a tensor"):
        kasuri.export(bnn, None)
    with pytest.raises(ValueError, match="1 inputs want 1 different names"):
        kasuri.export(bnn, x, input_names=["a", "b"])
    with pytest.raises(ValueError, match="all have as many"):
        kasuri.export(
            Two(), (torch.randn(3, 3), torch.randn(4, 4)), output=lambda out: out["logits"]
        )
    with pytest.raises(kasuri.ExportError, match="`if` on the values"):
        kasuri.export(Branching(), x)


def test_refusals_of_inputs_and_places(tmp_path):
    net, x = make("mlp")
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    for kind in ("mean", "ensemble", "variance"):
        with pytest.raises(ValueError, match="does not run on it, float64"):
            kasuri.export(bnn, x.double(), kind=kind)
    with pytest.raises(ValueError, match=r"shape \(2,\) for inputs"):
        kasuri.export(bnn, x, input_scaling=(torch.zeros(2), torch.ones(2)))
    with pytest.raises(IsADirectoryError, match="path of a file in it"):
        kasuri.export(bnn, x, tmp_path)
    with pytest.raises(ValueError, match="Write kind='ensemble'"):
        kasuri.export(bnn, x, "ensemble")
    with pytest.raises(TypeError, match=r"\['pixels'\]"):
        kasuri.export(bnn, x, input_names="pixels")


def test_a_torch_file_needs_no_kasuri(tmp_path):
    net, x = make("mlp")
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    kasuri.export(bnn, x, tmp_path / "net.pt2", kind="ensemble", members=2, format="torch")
    code = (
        "import sys; sys.modules['kasuri'] = None\n"
        "import torch; torch.set_num_threads(1)\n"
        f"mean, std = torch.export.load(r'{tmp_path / 'net.pt2'}').module()(torch.zeros(3, 4))\n"
        "print(tuple(mean.shape))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "(3, 3)", done.stderr


def test_inputs_and_outputs_have_different_names(tmp_path):
    bnn = kasuri.bayesianize(nn.Linear(3, 2), kasuri.MeanField())
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match="'output' would be an input and an output"):
        kasuri.export(bnn, x, input_names=["output"])
    with pytest.raises(ValueError, match='write "full" or "diagonal"'):
        kasuri.export(bnn, x, kind="mean", covariance="diag")
    with pytest.raises(FileNotFoundError, match="no folder"):
        kasuri.export(bnn, x, tmp_path / "missing" / "net.onnx")


@pytest.mark.parametrize(
    ("activation", "noise"),
    [
        ("silu", "heteroscedastic"),  # whose derivative torch.onnx does not take apart by itself
        pytest.param("tanh", "heteroscedastic", marks=pytest.mark.thorough),
        pytest.param("relu", "gaussian", marks=pytest.mark.thorough),
        pytest.param("gelu", "gaussian", marks=pytest.mark.thorough),
    ],
)
def test_estimators_in_double_precision_export_moments(activation, noise):
    from kasuri.sklearn import BayesianRegressor

    rows = np.random.default_rng(0).normal(size=(40, 3))
    model = BayesianRegressor(
        (6,), activation=activation, likelihood=noise, max_epochs=2, random_state=0
    ).fit(rows, rows[:, 0])
    file = model.export(kind="variance")
    assert file.error <= 1e-5


def test_what_onnx_has_not_is_said():
    class Rotation(nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x.view(-1, 2, 2)).Q.flatten(1)

    bnn = kasuri.bayesianize(nn.Sequential(nn.Linear(3, 4), Rotation()), kasuri.MeanField())
    with pytest.raises(kasuri.ExportError, match=r'linalg_qr.*write format="torch"'):
        kasuri.export(bnn, torch.randn(2, 3))
    assert kasuri.export(bnn, torch.randn(2, 3), format="torch").error == 0
