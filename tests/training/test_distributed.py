"""Two processes under torchrun: one training, one KL, one writer of files; one of them killed."""

import json
import multiprocessing
import signal
import socket

import pytest
import torch

import kasuri
from kasuri.streams import Stream, mix, reseed_global
from kasuri.training import Batches, Processes, checkpoint
from tests.training import ranks
from tests.training.jobs import SEED, differences, ending, moons, network


def together(folder, act, *arguments, codes=(0, 0)):
    """Let two processes act that have torch already; what they say on standard error."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.ranks", "experiments.cli", "torch._dynamo"])
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    logs = [folder / f"log {rank}" for rank in (0, 1)]
    processes = [
        context.Process(target=ranks.start, args=(rank, port, log, act, *arguments))
        for rank, log in enumerate(logs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    said = "".join(log.read_text() for log in logs)
    assert tuple(process.exitcode for process in processes) == codes, said[-4000:]
    return said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "stderr").write_text(together(folder, ranks.main, "things", folder))
    return folder


@pytest.fixture(scope="module")
def found(folder):
    """What each of the two processes saw."""
    return [torch.load(folder / f"found things {rank}.pt") for rank in (0, 1)]


def test_parameters_are_bitwise_equal_and_begin_where_rank_0_does(found):
    first, second = found
    assert differences(first["state"], second["state"]) == []
    assert first["best"] == second["best"]
    assert first["temperature"] == second["temperature"]
    for key in ("loss", "nll", "kl", "valid_nll", "valid_accuracy", "temperature", "step"):
        assert [r[key] for r in first["history"]] == [r[key] for r in second["history"]]


def test_every_process_draws_its_own_weights_in_every_step(found):
    first, second = found[0]["draws"], found[1]["draws"]
    assert len(first) == len(second) == 4 * 10 * ranks.EPOCHS  # posteriors, steps
    seen = {tuple(draw.flatten().tolist()) for draw in [*first, *second]}
    assert len(seen) == len(first) + len(second)


def test_the_shares_of_a_batch_are_disjoint_and_make_up_an_epoch(found):
    whole = {tuple(row) for row in moons(200)[0].tolist()}
    for epoch in range(ranks.EPOCHS):
        steps = slice(10 * epoch, 10 * epoch + 10)
        rows = [torch.cat(one["inputs"][steps]).tolist() for one in found]
        assert [len(one) for one in rows] == [100, 100]
        assert {tuple(row) for row in rows[0] + rows[1]} == whole


def test_the_gradient_is_the_mean_of_the_gradients_of_the_shares(found):
    expected, losses = {}, []
    for rank in (0, 1):
        objective = kasuri.ELBO(
            ranks.converted(),
            kasuri.Categorical(),
            kasuri.HeNormal(),
            num_data=200,
            temperature=found[0]["history"][0]["temperature"],
            kl_weight=kasuri.schedules.LinearOverEpochs(ranks.WARM_UP, 10),
        )
        batches = Batches(*moons(200), ranks.BATCH, seed=SEED).shared(Processes(rank, 2))
        x, y = next(batches.epoch(0))
        assert torch.equal(x, found[rank]["inputs"][0])
        reseed_global(mix(SEED, Stream.NOISE, 0, rank), torch.device("cpu"))
        terms = objective(x, y, step=0)
        terms.loss.backward()
        losses.append(float(terms.loss.detach()))
        for name, parameter in objective.named_parameters():
            expected[name] = expected.get(name, 0) + parameter.grad / 2
    for one in found:
        assert one["grads"].keys() == expected.keys()
        for name, grad in one["grads"].items():
            torch.testing.assert_close(grad, expected[name])
    assert [one["losses"][0] for one in found] == pytest.approx(losses)


def test_the_kl_counts_once(found):
    watch = ranks.Watch()
    state, history = ranks.only_kl(watch)
    for one in found:
        other_state, other_history, grads = one["kl"]
        for name, grad in watch.grads.items():
            torch.testing.assert_close(grads[name], grad)
        for name, value in state.items():
            torch.testing.assert_close(other_state[name], value)
        for a, b in zip(other_history, history, strict=True):
            assert (a["loss"], a["kl"]) == pytest.approx((b["loss"], b["kl"]))


def test_the_history_is_the_mean_over_processes(found):
    for epoch, row in enumerate(found[0]["history"]):
        steps = slice(10 * epoch, 10 * epoch + 10)
        losses = [loss for one in found for loss in one["losses"][steps]]
        assert row["loss"] == pytest.approx(sum(losses) / 20)


def test_only_rank_0_writes(folder):
    assert (folder / "rank 0" / "checkpoint.pt").is_file()
    assert not (folder / "rank 1").exists()


def test_what_cannot_be_shared_is_refused_by_all(found):
    for one in found:
        size, loader = one["refusals"]
        assert "multiple of 2" in size
        assert "DistributedSampler" in loader


def test_a_loader_with_a_distributed_sampler(found):
    first, second = (one["loader"] for one in found)
    assert differences(first["state"], second["state"]) == []
    assert first["step"] == 8
    for epoch in (slice(0, 4), slice(4, 8)):
        rows = [
            tuple(row) for one in (first, second) for x in one["seen"][epoch] for row in x.tolist()
        ]
        assert len(rows) == len(set(rows)) == 40
    assert not torch.equal(first["seen"][0], first["seen"][4])  # another order in the next epoch


def test_without_a_seed_and_with_uneven_shares_the_processes_agree(found):
    for what in ("unseeded", "uneven", "batches"):
        assert differences(found[0][what], found[1][what]) == []
        assert differences(found[0][what], network().state_dict()) != []
    assert differences(found[0]["uneven"], found[0]["batches"]) == []


def test_other_errors_are_not_mistaken_for_a_lost_process(found):
    for one in found:
        assert "shapes cannot be multiplied" in one["mistake"]


def test_control_c_in_one_process_stops_all_after_the_same_step(folder, found):
    assert "goes on" in found[0]["stopped"]
    assert found[0]["stopped"] == found[1]["stopped"]
    step = checkpoint.read(folder / "stopped")["position"]["step"]
    assert f"step {step};" in found[0]["stopped"]


def test_torch_has_nothing_to_complain_about(folder):
    assert "Warning" not in (folder / "stderr").read_text()


def test_a_killed_process_ends_the_job_and_the_run_can_be_resumed(folder, tmp_path):
    said = together(tmp_path, ranks.main, "long", tmp_path, 33, codes=(1, -signal.SIGKILL))
    assert "lost contact with the others" in said
    assert "goes on" in said
    assert checkpoint.read(tmp_path)["position"]["step"] == 30
    together(tmp_path, ranks.main, "long", tmp_path)
    assert torch.load(tmp_path / "found long 1.pt") == {"epochs": ranks.EPOCHS}
    assert differences(ending(folder / "whole"), ending(tmp_path)) == []


def test_the_command_line_writes_one_result(tmp_path):
    words = ["run", "demo/digits", "--smoke", "--variants", "k-tied-2", "--seeds", "0", "0"]
    words += ["--results", str(tmp_path / "a"), "--runs", str(tmp_path / "b")]
    together(tmp_path, ranks.command_line, words, tmp_path / "said")
    (path,) = (tmp_path / "a").rglob("*.json")
    assert path.name == "0.json"
    result = json.loads(path.read_text())
    assert result["variant"] == "k-tied-2"
    assert 0.05 < result["metrics"]["accuracy"] <= 1
    assert 0 < result["metrics"]["nll"] < 5
    assert [row["epoch"] for row in result["history"]] == [1, 2]
    names = sorted(one.name for one in (tmp_path / "b").rglob("*") if one.is_file())
    assert names == ["checkpoint.pt", "history.csv", "model.safetensors"]
    told = [line for line in (tmp_path / "said").read_text().splitlines() if "seed 0: " in line]
    assert ["is there" in line for line in told] == [False, True]  # by one process each time
