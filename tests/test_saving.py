"""Files: bit-exact round trips, no code inside, and a clear refusal of everything else."""

import json
import os
import struct

import pytest
import torch
from safetensors import safe_open
from torch import nn

import weft
from weft.saving import FORMAT


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, groups=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def mixed():
    bnn = weft.bayesianize(network(), weft.MeanField(), where="0", estimator="flipout")
    return weft.bayesianize(
        bnn, weft.KTied(rank=2, max_scale=0.5), where="4", estimator="local", bias=False
    )


def same(a, b):
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


def test_round_trip_is_bit_exact_before_and_after_training(tmp_path):
    bnn, path, x = mixed(), tmp_path / "model.safetensors", torch.randn(5, 1, 4, 4)
    for _ in range(2):
        weft.save(bnn, path)
        again = weft.load(path, network())
        assert same(bnn, again)
        assert [n for n, _ in bnn.named_parameters()] == [n for n, _ in again.named_parameters()]
        assert str(weft.summary(bnn)) == str(weft.summary(again))
        assert [m.estimator for m in bnn.modules() if isinstance(m, weft.Bayesian)] == [
            m.estimator for m in again.modules() if isinstance(m, weft.Bayesian)
        ]
        for mode in (True, False):
            torch.manual_seed(1)
            a = bnn.train(mode)(x)
            torch.manual_seed(1)
            assert torch.equal(a, again.train(mode)(x))
            assert same(bnn, again)  # batch-norm moved in both alike
        bnn.train()(x).sum().backward()


def test_loading_uses_no_randomness_and_does_not_touch_the_given_network(tmp_path):
    path, net = tmp_path / "m", network()
    weft.save(mixed(), path)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    weft.load(path, net)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


@pytest.mark.parametrize("blocks", [False, True])
def test_recurrent_tied_and_attention_networks(tmp_path, blocks):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 6)
            self.lstm = nn.LSTM(6, 6, 2, bidirectional=False, batch_first=True)
            self.mix = nn.MultiheadAttention(6, 2, batch_first=True)
            self.head = nn.Linear(6, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            h, _ = self.lstm(self.embed(ids))
            return self.head(self.mix(h, h, h)[0])

    bnn = weft.bayesianize(Tied(), weft.KTied(rank=2), blocks=blocks)
    weft.save(bnn, tmp_path / "m")
    again = weft.load(tmp_path / "m", Tied())
    assert same(bnn, again)
    assert again.embed.posterior("weight") is again.head.posterior("weight")
    ids = torch.randint(7, (2, 5))
    assert torch.equal(bnn.eval()(ids), again.eval()(ids))


def test_objective_round_trip(tmp_path):
    bnn = mixed()
    elbo = weft.ELBO(
        bnn,
        weft.Gaussian(),
        {"0": weft.Normal(0.3, learn="gradient"), "*": weft.HeNormal()},
        num_data=123,
        temperature=0.2,
        samples=2,
        kl_weight=weft.schedules.LinearPerBatch(5e-5, every=100),
    )
    with torch.no_grad():
        elbo.likelihood.log_scale.fill_(0.123)
        elbo.priors[0].log_scale.fill_(-0.7)
    weft.save(bnn, tmp_path / "m", objective=elbo)
    again = weft.load_objective(tmp_path / "m", weft.load(tmp_path / "m", network()))
    assert same(elbo, again)
    assert (again.num_data, again.samples, again.kl_weight) == (123, 2, elbo.kl_weight)
    assert torch.equal(elbo.kl(), again.kl())
    assert again.weight_at(500) == elbo.weight_at(500)


def test_a_file_without_an_objective_says_so(tmp_path):
    weft.save(mixed(), tmp_path / "m")
    with pytest.raises(weft.FileError, match="objective=elbo"):
        weft.load_objective(tmp_path / "m", mixed())


def test_dtypes_are_kept(tmp_path):
    for dtype in (torch.float64, torch.bfloat16):
        bnn = weft.bayesianize(nn.Linear(3, 2).to(dtype), weft.KTied(rank=1))
        weft.save(bnn, tmp_path / "m")
        again = weft.load(tmp_path / "m", nn.Linear(3, 2).to(dtype))
        assert same(bnn, again)
        assert next(again.parameters()).dtype == dtype


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (nn.Sequential(nn.Linear(4, 3)), r"no module '1'"),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), r"'1' is a ReLU.*Tanh"),
        (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), r"out_features=3"),
        (nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.ReLU()), r"module '3'"),
        (nn.Linear(4, 3), r"is a Linear.*Sequential"),
    ],
)
def test_a_wrong_architecture_is_refused(tmp_path, other, words):
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    weft.save(weft.bayesianize(net, weft.MeanField()), tmp_path / "m")
    with pytest.raises(weft.FileError, match=words):
        weft.load(tmp_path / "m", other)


def test_strict_can_be_lifted_for_options_without_tensors(tmp_path):
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1))
    weft.save(weft.bayesianize(net, weft.MeanField()), tmp_path / "m")
    other = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2))
    with pytest.raises(weft.FileError, match="strict=False"):
        weft.load(tmp_path / "m", other)
    weft.load(tmp_path / "m", other, strict=False)


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "m"
    weft.save(mixed(), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(weft.FileError, match="damaged"):
        weft.load(path, network())


def test_any_changed_byte_of_tensors_or_description_is_noticed(tmp_path):
    path = tmp_path / "m"
    weft.save(mixed(), path)
    data = path.read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    for position in (header, header + 100, len(data) - 1):
        changed = bytearray(data)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(weft.FileError, match="changed after it was written"):
            weft.load(path, network())
    path.write_bytes(data.replace(b"max_scale", b"min_scale"))
    with pytest.raises(weft.FileError, match="changed"):
        weft.load(path, network())


def rewritten(path, edit):
    """The file with its description edited and everything else, digest included, left."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    edit(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def test_an_unknown_format_is_refused_with_both_versions(tmp_path):
    path = tmp_path / "m"
    weft.save(mixed(), path)

    def newer(metadata):
        told = json.loads(metadata["weft"])
        metadata["weft"] = json.dumps(told | {"format": FORMAT + 1, "versions": {"weft": "9.9"}})

    rewritten(path, newer)
    with pytest.raises(weft.FileError, match=rf"format {FORMAT + 1}.*format {FORMAT}.*9\.9"):
        weft.load(path, network())


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "m"
    weft.save(mixed(), path)
    rewritten(path, lambda metadata: metadata.pop("weft"))
    with pytest.raises(weft.FileError, match=r"not one written by weft\.save"):
        weft.load(path, network())
    torch.save(network().state_dict(), path)
    with pytest.raises(weft.FileError, match="damaged or no safetensors"):
        weft.load(path, network())
    with pytest.raises(FileNotFoundError):
        weft.load(tmp_path / "nothing", network())


def test_the_description_is_readable_json_with_versions_and_options(tmp_path):
    weft.save(mixed(), tmp_path / "m")
    with safe_open(tmp_path / "m", "pt") as file:
        told = json.loads(file.metadata()["weft"])
    assert told["versions"] == {"weft": weft.__version__, "torch": torch.__version__}
    layer = told["layers"]["4"]
    assert layer["estimator"] == "local"
    assert layer["parameters"]["weight"]["options"]["rank"] == 2


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m"
    weft.save(mixed(), path)
    before = path.read_bytes()

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        weft.save(mixed(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_families_that_cannot_be_described_are_refused(tmp_path):
    bnn = weft.bayesianize(nn.Linear(2, 2), lambda w: weft.MeanField()(w))
    with pytest.raises(ValueError, match=r"weft\.Family"):
        weft.save(bnn, tmp_path / "m")
    with pytest.raises(ValueError, match="bayesianize"):
        weft.save(nn.Linear(2, 2), tmp_path / "m")
