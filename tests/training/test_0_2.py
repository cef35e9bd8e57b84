"""Files that version 0.2 wrote: a checkpoint goes on, models and estimators load.

`values-0.2.json` has numbers that version 0.2 computed from the same files. The network has an attention
layer, whose parameters had another order then.
"""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import kasuri
from kasuri.sklearn import BayesianClassifier, BayesianRegressor
from kasuri.training import checkpoint
from tests.training.jobs import Stop

FIXTURES = Path(__file__).parents[1] / "fixtures"
VALUES = json.loads((FIXTURES / "values-0.2.json").read_text())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(x + self.attention(x, x, x)[0]).mean(1))


def data():
    x = torch.randn(24, 3, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0, 0] > 0).long()


def today(name):
    return name.replace("posteriors.out_proj/", "out_proj.posteriors.")


def resumed(folder, callback, **changes):
    bnn = kasuri.bayesianize(Net(), kasuri.KTied(rank=1))
    prior = kasuri.Normal(0.5, learn="gradient")
    settings = {"epochs": 4, "batch_size": 6, "seed": 3, "callbacks": [callback]} | changes
    return kasuri.fit(bnn, data(), data(), prior=prior, folder=folder, **settings)


@pytest.fixture
def folder(tmp_path):
    packed = (FIXTURES / "checkpoint-0.2.pt.xz").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(lzma.decompress(packed))
    return tmp_path


def test_a_checkpoint_goes_on(folder):
    """It was stopped after step 9, of 16: parameters and Adam's means begin where they were."""
    began = {}

    class Stop(kasuri.training.Callback):
        def on_step(self, objective, step, terms):
            began.setdefault("step", step)
            sums = {n: float(p.detach().double().sum()) for n, p in objective.named_parameters()}
            began.setdefault("sums", sums)

    fitted = resumed(folder, Stop())
    assert began["step"] == 10
    assert began["sums"] == pytest.approx({today(k): v for k, v in VALUES["sums"].items()})
    assert [row["step"] for row in fitted.history] == [4, 8, 12, 16]
    assert checkpoint.read(folder)["format"] == checkpoint.FORMAT
    assert (folder / "history.csv").read_text().count("\n") == 5


def test_the_state_of_the_optimiser_finds_its_parameters(folder):
    elbo = kasuri.ELBO(
        kasuri.bayesianize(Net(), kasuri.KTied(rank=1)),
        kasuri.Categorical(),
        kasuri.Normal(0.5, learn="gradient"),
        num_data=24,
    )
    names = [name for name, _ in elbo.named_parameters()]
    assert names != [today(name) for name in VALUES["adam"]]  # else this tests nothing
    adam = torch.optim.Adam(elbo.parameters(), fused=True)
    read = checkpoint.from_0_2(checkpoint.read(folder), elbo, adam, {})
    adam.load_state_dict(read["optimizer"])
    means = {n: float(adam.state[p]["exp_avg"].double().sum()) for n, p in elbo.named_parameters()}
    assert means == pytest.approx({today(k): v for k, v in VALUES["adam"].items()})


def test_a_checkpoint_of_another_run_is_refused(folder):
    with pytest.raises(kasuri.training.CheckpointError, match="epochs: 4 then, 5 now"):
        resumed(folder, Stop(), epochs=5)


def test_a_model_loads_with_its_objective():
    path = FIXTURES / "model-0.2.safetensors"
    bnn = kasuri.load(path, Net()).eval()
    torch.testing.assert_close(bnn(data()[0][:3]), torch.tensor(VALUES["outputs"]))
    elbo = kasuri.load_objective(path, bnn)
    assert float(elbo.kl().detach()) == pytest.approx(VALUES["kl"])
    assert elbo.weight_at(4) == VALUES["weight"]


def test_estimators_load():
    rows = data()[0][:, 0].double().numpy()
    regressor = BayesianRegressor.load(FIXTURES / "regressor-0.2.weft")
    assert regressor.temperature == kasuri.Balanced(0.1)
    np.testing.assert_allclose(regressor.predict(rows[:3]), VALUES["regressor"])
    assert np.isfinite(regressor.fit(rows, rows[:, 0]).predict(rows)).all()
    classifier = BayesianClassifier.load(FIXTURES / "classifier-0.2.weft")
    outputs = classifier.model_.eval()(torch.tensor(rows[:3]))
    np.testing.assert_allclose(outputs.detach(), VALUES["classifier"])
    assert classifier.classes_.tolist() == VALUES["classes"]
