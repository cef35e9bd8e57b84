"""Exported files compute what the network computes, without kasuri."""

import importlib
import io
import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import kasuri
from tests.exporting.files import run_file
from tests.prediction.moments.nets import NAMES, make

CLASSES = ("mean", "std", "entropy", "mutual_information")


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["onnx", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_one_function(name, form):
    net, x = make(name)
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2, scale=0.1)).eval()
    file = kasuri.export(bnn, x, format=form)
    assert file.error <= 1e-5
    plain = kasuri.collapse(bnn).eval()
    for count in (1, 6, 11):
        batch = x[torch.arange(count) % len(x)]
        with torch.no_grad():
            close(run_file(file, batch)["output"], plain(batch))
    if form == "onnx":
        onnx.checker.check_model(onnx.load_model_from_string(file.data))


@pytest.mark.parametrize(("name", "form"), [("mlp", "onnx"), ("lstm", "onnx"), ("mlp", "torch")])
def test_an_ensemble_says_what_predict_says(name, form):
    net, x = make(name)
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.1))
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.Normal(1.0), num_data=10)
    file = kasuri.export(elbo, x, kind="ensemble", members=3, seed=5, format=form)
    assert file.error <= 1e-5
    batch = x[torch.arange(9) % len(x)]
    pred = kasuri.predict(elbo, batch, samples=3, seed=5)
    found = run_file(file, batch)
    assert tuple(found) == CLASSES
    for word, value in found.items():
        close(value, getattr(pred, word))


def small(name):
    """Networks as small as shows every rule of a backward pass: larger ones take long to convert."""
    torch.manual_seed(0)
    if name == "dense":
        return nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.Linear(4, 2)), torch.randn(6, 3)
    convolution = nn.Conv2d(2, 2, 3, stride=2, padding=1)
    layers = nn.BatchNorm2d(2), convolution, nn.ReLU(), nn.Conv2d(2, 1, 2), nn.Flatten()
    return nn.Sequential(*layers), torch.randn(6, 2, 4, 4)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("dense", "onnx"),
        ("convolution", "onnx"),
        *(pytest.param(name, "onnx", marks=pytest.mark.thorough) for name in NAMES),
    ],
)
def test_a_variance_says_what_predict_moments_says(name, form):
    net, x = make(name) if name in NAMES else small(name)
    x = x[:, :2] if name == "lstm" else x  # every step of a sequence is a hundred operations
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2, scale=0.1))
    likelihood = None if name == "convolution" else kasuri.Categorical()  # which has one output
    file = kasuri.export(bnn, x, kind="variance", likelihood=likelihood, format=form)
    assert file.error <= 1e-5
    batch = x[torch.arange(8) % len(x)]
    pred = kasuri.predict_moments(bnn, batch, likelihood=likelihood)
    for word, value in run_file(file, batch).items():
        close(value, getattr(pred, word))


@pytest.mark.parametrize(
    "likelihood",
    [
        kasuri.Gaussian(0.3),
        kasuri.GammaGaussian(),
        kasuri.HeteroscedasticGaussian(),
        kasuri.Bernoulli(),
    ],
)
def test_every_likelihood(likelihood):
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(nn.Sequential(nn.Linear(3, 2)), kasuri.MeanField(scale=0.2))
    elbo = kasuri.ELBO(bnn, likelihood, kasuri.Normal(1.0), num_data=10)
    x = torch.randn(5, 3)
    file = kasuri.export(elbo, x, kind="ensemble", members=4, format="torch")
    pred = kasuri.predict(elbo, x, samples=4, seed=0)
    for word, value in run_file(file, x).items():
        close(value, getattr(pred, word))


def test_units_of_the_target():
    torch.manual_seed(0)
    bnn = kasuri.bayesianize(nn.Linear(3, 1), kasuri.MeanField(scale=0.2))
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(0.3), kasuri.Normal(1.0), num_data=10)
    x = torch.randn(5, 3)
    units = {"target_mean": 7.0, "target_scale": 2.5, "format": "torch"}
    pred = kasuri.predict(elbo, x, samples=4, seed=0)
    found = run_file(kasuri.export(elbo, x, kind="ensemble", members=4, **units), x)
    close(found["mean"], pred.mean * 2.5 + 7)
    close(found["std"], pred.std * 2.5)
    close(found["aleatoric"], pred.aleatoric * 2.5**2)
    close(found["epistemic"], pred.epistemic * 2.5**2)
    (output,) = run_file(kasuri.export(elbo, x, **units), x).values()
    close(output, bnn.eval()(x) * 2.5 + 7)


def test_an_estimator_exports_what_it_predicts(tmp_path):
    from kasuri.sklearn import BayesianClassifier, BayesianRegressor

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 3)) * [1, 100, 0.01] + [5, 0, 1]
    target = 300 + 20 * rows[:, 0] + rng.normal(size=40)
    options = {"max_epochs": 2, "n_samples": 5, "random_state": 0}
    model = BayesianRegressor((6,), **options).fit(rows, target)
    found = run_file(model.export(tmp_path / "model.onnx"), torch.from_numpy(rows))
    mean, std = model.predict(rows, return_std=True)
    assert np.allclose(found["mean"][:, 0], mean, rtol=1e-9)
    assert np.allclose(found["std"][:, 0], std, rtol=1e-9)
    labels = np.where(target > 400, "high", "low")
    labels[:5] = "high"
    classifier = BayesianClassifier((6,), **options).fit(rows, labels)
    found = run_file(classifier.export(), torch.from_numpy(rows))
    assert np.allclose(found["mean"], classifier.predict_proba(rows), atol=1e-9)


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
    assert model.export(kind="variance").error <= 1e-5


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, left, right):
        return {"logits": self.a(left) + self.b(right)}


def test_several_named_inputs_and_an_output_to_take_out():
    bnn = kasuri.bayesianize(Two(), kasuri.MeanField(scale=0.1)).eval()
    x = {"right": torch.randn(5, 4), "left": torch.randn(5, 3)}

    def take(out):
        return out["logits"]

    named = kasuri.export(bnn, x, output=take)
    assert named.inputs == ("right", "left")
    assert named.metadata["kasuri.inputs"] == "right, left"
    close(run_file(named, x["right"], x["left"])["output"], take(bnn(**x)).detach())
    moments = kasuri.export(bnn, x, kind="variance", format="torch")
    pred = kasuri.predict_moments(bnn, x, output=take)
    close(run_file(moments, x["right"], x["left"])["std"], pred.std)


def test_what_a_file_says_about_itself(tmp_path):
    net, x = make("mlp")
    bnn = kasuri.bayesianize(net, kasuri.KTied(rank=2))
    file = kasuri.export(bnn, x, tmp_path / "net.onnx", kind="ensemble", members=2, seed=9)
    assert (tmp_path / "net.onnx").read_bytes() == file.data
    session = onnxruntime.InferenceSession(file.data)
    found = session.get_modelmeta().custom_metadata_map
    expected = {
        "kind": "ensemble",
        "members": "2",
        "seed": "9",
        "family": "KTied, MeanField",
        "version": kasuri.__version__,
        "outputs": "mean, std",
    }
    assert {key: found[f"kasuri.{key}"] for key in expected} == expected
    assert session.get_inputs()[0].shape[0] == "batch"
    stored = kasuri.export(bnn, x, format="torch")
    extra = {"kasuri.json": ""}
    torch.export.load(io.BytesIO(stored.data), extra_files=extra)
    assert json.loads(extra["kasuri.json"])["kasuri.kind"] == "mean"


def test_an_ordinary_network_and_a_batch_of_one():
    net, x = make("lenet")
    found = run_file(kasuri.export(net.train(), x[:1]), x)["output"]
    assert net.training
    close(found, net.eval()(x).detach())


def test_nothing_is_written_when_the_file_is_wrong(tmp_path, monkeypatch):
    net, x = make("mlp")
    path = tmp_path / "net.onnx"
    path.write_text("old")
    module = importlib.import_module("kasuri.exporting.export")
    monkeypatch.setattr(module, "largest_error", lambda *_: 0.5)
    with pytest.raises(kasuri.exporting.ExportError, match=r"0\.5"):
        kasuri.export(net, x, path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    kasuri.export(net, x, path, tolerance=1)
    assert path.read_bytes() != b"old"


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


class Rotation(nn.Module):
    def forward(self, x):
        return torch.linalg.qr(x.view(-1, 2, 2)).Q.flatten(1)


def test_what_onnx_has_not_is_said():
    bnn = kasuri.bayesianize(nn.Sequential(nn.Linear(3, 4), Rotation()), kasuri.MeanField())
    with pytest.raises(kasuri.exporting.ExportError, match="linalg_qr"):
        kasuri.export(bnn, torch.randn(2, 3))
    assert kasuri.export(bnn, torch.randn(2, 3), format="torch").error == 0


def test_encoders_with_masks_are_exported_without_shortcuts():
    """In evaluation mode torch writes zeros at masked positions, if it takes its shortcut."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    bnn = kasuri.bayesianize(nn.TransformerEncoder(layer, 1), kasuri.MeanField())
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[:, 4:] = True
    example = {"src": torch.randn(3, 6, 8), "src_key_padding_mask": mask}
    assert kasuri.export(bnn, example, format="torch").error < 1e-5


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("mean", "onnx"),
        ("ensemble", "torch"),
        ("variance", "torch"),
        pytest.param("variance", "onnx", marks=pytest.mark.thorough),
    ],
)
def test_channels_last(kind, form):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    net = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    bnn = kasuri.bayesianize(net, kasuri.MeanField())
    options = {"kind": kind, "format": form, "members": 3, "likelihood": kasuri.Categorical()}
    assert kasuri.export(bnn, torch.randn(4, 3, 4, 4), **options).error < 1e-5


def test_files_do_not_hold_weights_twice():
    net = nn.Sequential(nn.Linear(64, 128), nn.ELU(), nn.Linear(128, 2))
    held = sum(parameter.numel() for parameter in net.parameters())
    bnn, x = kasuri.bayesianize(net, kasuri.KTied(rank=1, scale=0.1)), torch.randn(2, 64)
    likelihood = kasuri.Categorical()
    made = kasuri.export(bnn, x, kind="variance", likelihood=likelihood, format="torch")
    close(run_file(made, x)["std"], kasuri.predict_moments(bnn, x, likelihood=likelihood).std)
    program = torch.export.load(io.BytesIO(made.data))
    stored = (*program.constants.values(), *program.state_dict.values())
    assert sum(value.numel() for value in stored) < 2.2 * held  # means and standard deviations
