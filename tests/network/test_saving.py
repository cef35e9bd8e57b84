"""Files: bit-exact round trips, no code inside, and a clear refusal of everything else."""

import json
import struct

import pytest
import torch
from safetensors import safe_open
from torch import nn

import kasuri
from kasuri.network.random import named_layers
from kasuri.network.saving import FORMAT


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, groups=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def mixed():
    bnn = kasuri.bayesianize(network(), kasuri.MeanField(), where="0", estimator="flipout")
    return kasuri.bayesianize(
        bnn, kasuri.KTied(rank=2, max_scale=0.5), where="4", estimator="local", bias=False
    )


def same(a, b):
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


def test_round_trip_is_bit_exact_before_and_after_training(tmp_path):
    bnn, path, x = mixed(), tmp_path / "model.safetensors", torch.randn(5, 1, 4, 4)
    for _ in range(2):
        kasuri.save(bnn, path)
        again = kasuri.load(path, network())
        assert same(bnn, again)
        assert [n for n, _ in bnn.named_parameters()] == [n for n, _ in again.named_parameters()]
        assert str(kasuri.summary(bnn)) == str(kasuri.summary(again))
        assert [done.estimator for _, _, done in named_layers(bnn)] == [
            done.estimator for _, _, done in named_layers(again)
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
    kasuri.save(mixed(), path)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    kasuri.load(path, net)
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

    bnn = kasuri.bayesianize(Tied(), kasuri.KTied(rank=2), blocks=blocks)
    kasuri.save(bnn, tmp_path / "m")
    again = kasuri.load(tmp_path / "m", Tied())
    assert same(bnn, again)
    assert again.embed.posteriors.weight is again.head.posteriors.weight
    ids = torch.randint(7, (2, 5))
    assert torch.equal(bnn.eval()(ids), again.eval()(ids))


def test_objective_round_trip(tmp_path):
    bnn = mixed()
    elbo = kasuri.ELBO(
        bnn,
        kasuri.Gaussian(),
        {"0": kasuri.Normal(0.3, learn="gradient"), "*": kasuri.Normal(learn="closed form")},
        num_data=123,
        temperature=0.2,
        samples=2,
        kl_weight=kasuri.schedules.LinearPerBatch(5e-5, every=100),
    )
    with torch.no_grad():
        elbo.likelihood.log_scale.fill_(0.123)
        elbo.priors[0].log_scale.fill_(-0.7)
    kasuri.save(bnn, tmp_path / "m", objective=elbo)
    again = kasuri.load_objective(tmp_path / "m", kasuri.load(tmp_path / "m", network()))
    assert same(elbo, again)
    assert (again.num_data, again.samples, again.kl_weight) == (123, 2, elbo.kl_weight)
    assert torch.equal(elbo.kl(), again.kl())
    assert again.weight_at(500) == elbo.weight_at(500)


def test_a_file_without_an_objective_says_so(tmp_path):
    kasuri.save(mixed(), tmp_path / "m")
    with pytest.raises(kasuri.FileError, match="objective=elbo"):
        kasuri.load_objective(tmp_path / "m", mixed())


def test_dtypes_are_kept(tmp_path):
    for dtype in (torch.float64, torch.bfloat16):
        bnn = kasuri.bayesianize(nn.Linear(3, 2).to(dtype), kasuri.KTied(rank=1))
        kasuri.save(bnn, tmp_path / "m")
        again = kasuri.load(tmp_path / "m", nn.Linear(3, 2).to(dtype))
        assert same(bnn, again)
        assert again.weight.dtype == dtype
        assert next(again.parameters()).dtype == torch.promote_types(dtype, torch.float32)


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
    kasuri.save(kasuri.bayesianize(net, kasuri.MeanField()), tmp_path / "m")
    with pytest.raises(kasuri.FileError, match=words):
        kasuri.load(tmp_path / "m", other)


def test_strict_can_be_lifted_for_options_without_tensors(tmp_path):
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1))
    kasuri.save(kasuri.bayesianize(net, kasuri.MeanField()), tmp_path / "m")
    other = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2))
    with pytest.raises(kasuri.FileError, match="strict=False"):
        kasuri.load(tmp_path / "m", other)
    kasuri.load(tmp_path / "m", other, strict=False)


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "m"
    kasuri.save(mixed(), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(kasuri.FileError, match="damaged"):
        kasuri.load(path, network())


def test_any_changed_byte_of_tensors_or_description_is_noticed(tmp_path):
    path = tmp_path / "m"
    kasuri.save(mixed(), path)
    data = path.read_bytes()
    header = 8 + struct.unpack("<Q", data[:8])[0]
    for position in (header, header + 100, len(data) - 1):
        changed = bytearray(data)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(kasuri.FileError, match="changed"):
            kasuri.load(path, network())
    path.write_bytes(data.replace(b"max_scale", b"min_scale"))
    with pytest.raises(kasuri.FileError, match="changed"):
        kasuri.load(path, network())


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
    kasuri.save(mixed(), path)

    def newer(metadata):
        told = json.loads(metadata["kasuri"])
        metadata["kasuri"] = json.dumps(
            told | {"format": FORMAT + 1, "versions": {"kasuri": "9.9"}}
        )

    rewritten(path, newer)
    with pytest.raises(
        kasuri.FileError, match=rf"format {FORMAT + 1}.*formats up to {FORMAT}.*9\.9"
    ):
        kasuri.load(path, network())


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "m"
    kasuri.save(mixed(), path)
    rewritten(path, lambda metadata: metadata.pop("kasuri"))
    with pytest.raises(kasuri.FileError, match=r"kasuri\.save"):
        kasuri.load(path, network())
    torch.save(network().state_dict(), path)
    with pytest.raises(kasuri.FileError, match="damaged"):
        kasuri.load(path, network())
    with pytest.raises(FileNotFoundError):
        kasuri.load(tmp_path / "nothing", network())


def test_the_description_is_readable_json_with_versions_and_options(tmp_path):
    kasuri.save(mixed(), tmp_path / "m")
    with safe_open(tmp_path / "m", "pt") as file:
        told = json.loads(file.metadata()["kasuri"])
    assert told["versions"] == {"kasuri": kasuri.__version__, "torch": torch.__version__}
    layer = told["layers"]["4"]
    assert layer["estimator"] == "local"
    assert layer["parameters"]["weight"]["options"]["rank"] == 2


def test_families_that_cannot_be_described_are_refused(tmp_path):
    bnn = kasuri.bayesianize(nn.Linear(2, 2), lambda w: kasuri.MeanField()(w))
    with pytest.raises(ValueError, match=r"kasuri\.Family"):
        kasuri.save(bnn, tmp_path / "m")
    with pytest.raises(ValueError, match="bayesianize"):
        kasuri.save(nn.Linear(2, 2), tmp_path / "m")
