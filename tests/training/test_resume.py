"""Runs that stop in the middle and go on: the end is bitwise that of a run that did not stop."""

import os
import pickle
import random
import signal
import threading

import numpy as np
import pytest
import torch

import kasuri
from kasuri.training import Validation, checkpoint
from tests.training import jobs
from tests.training.jobs import JOBS, Boom, Stop, differences, ending, run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The end of a job that nothing stopped, run once."""
    done = {}

    def of(job):
        if job not in done:
            folder = tmp_path_factory.mktemp(job)
            fitted = run(job, folder)
            done[job] = (fitted, ending(folder), (folder / "history.csv").read_text())
        return done[job]

    return of


def assert_same_end(fitted, folder, expected):
    other, content, _ = expected
    assert differences(content, ending(folder)) == []
    state, wanted = fitted.objective.state_dict(), other.objective.state_dict()
    assert differences(wanted, state) == []
    assert (fitted.best_epoch, fitted.temperature) == (other.best_epoch, other.temperature)
    assert differences(jobs.timeless(other.history), jobs.timeless(fitted.history)) == []


@pytest.mark.parametrize("job", JOBS)
def test_stopped_in_the_middle(tmp_path, job, whole):
    # by an error in the last step of an epoch, by Ctrl-C in the middle of another
    for step, act, error in (
        (3, jobs.raise_boom, Boom),
        (9, jobs.interrupt, kasuri.training.Interrupted),
    ):
        folder = tmp_path / str(step)
        with pytest.raises(error):
            run(job, folder, Stop(step, act))
        if act is jobs.interrupt:
            assert checkpoint.read(folder)["position"]["step"] == step + 1
        assert_same_end(run(job, folder), folder, whole(job))


def test_stopped_after_every_single_step(tmp_path, whole):
    for step in range(16):
        with pytest.raises(kasuri.training.Interrupted):
            run("loader", tmp_path, Stop(step, jobs.interrupt))
    assert_same_end(run("loader", tmp_path), tmp_path, whole("loader"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_after_the_step_and_handlers_come_back(tmp_path, number, whole):
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(kasuri.training.Interrupted, match=r"epoch 2, step 6.*goes on") as caught:
        run("local", tmp_path, Stop(5, jobs.send(number)))
    assert isinstance(caught.value, KeyboardInterrupt)
    assert str(tmp_path) in str(caught.value)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    assert_same_end(run("local", tmp_path), tmp_path, whole("local"))


def test_a_second_control_c_ends_at_once_and_leaves_the_last_checkpoint(tmp_path, whole):
    def twice():
        jobs.interrupt()
        jobs.interrupt()
        raise AssertionError("the second one did nothing")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        run("local", tmp_path, Stop(9, twice))
    assert not isinstance(caught.value, kasuri.training.Interrupted)
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint.read(tmp_path)["position"]["step"] == 8
    assert_same_end(run("local", tmp_path), tmp_path, whole("local"))


def test_control_c_without_a_folder_says_what_would_have_helped():
    settings = {"epochs": 2, "batch_size": 20, "callbacks": [Stop(1, jobs.interrupt)]}
    with pytest.raises(kasuri.training.Interrupted, match="epoch 1, step 2; with folder="):
        kasuri.fit(jobs.bayesian(), jobs.moons(), **settings)


@pytest.mark.parametrize("epoch", [2, 4])  # the last one's validation is not forgotten either
def test_control_c_between_epochs(tmp_path, whole, epoch):
    with pytest.raises(kasuri.training.Interrupted):
        run("local", tmp_path, Stop(act=jobs.interrupt, epoch=epoch))
    assert_same_end(run("local", tmp_path), tmp_path, whole("local"))


def test_training_outside_the_main_thread(tmp_path, whole):
    fits, before = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: fits.append(run("local", tmp_path)))
    thread.start()
    thread.join()
    assert_same_end(fits[0], tmp_path, whole("local"))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_is_taken_from_its_checkpoint(tmp_path, whole):
    run("shared", tmp_path / "a" / "b")
    never = Stop("any", jobs.raise_boom)
    assert_same_end(
        run("shared", tmp_path / "a" / "b", never), tmp_path / "a" / "b", whole("shared")
    )
    with pytest.raises(FileNotFoundError):
        checkpoint.read(tmp_path)


def test_patience_that_ended_a_run_ends_it_again(tmp_path):
    def go():
        return kasuri.fit(
            jobs.network(),
            jobs.moons(40),
            Validation(jobs.moons(20, seed=1), patience=2),
            optimiser=lambda o: torch.optim.SGD(o.parameters(), 0.0),  # nothing ever improves
            epochs=9,
            seed=0,
            folder=tmp_path,
        )

    assert [row["epoch"] for row in go().history] == [1, 2, 3]
    assert [row["epoch"] for row in go().history] == [1, 2, 3]


def test_the_history_file_is_that_of_the_checkpoint(tmp_path, whole):
    def go(callback):
        return run("local", tmp_path, callback, save_every=1e9)

    with pytest.raises(kasuri.training.Interrupted):  # checkpoint in epoch 2
        go(Stop(5, jobs.interrupt))
    with pytest.raises(Boom):  # epochs 2 and 3 are in no checkpoint
        go(Stop(13, jobs.raise_boom))
    path = tmp_path / "history.csv"
    assert path.read_text().count("\n") == 2
    go(None)
    rows, wanted = path.read_text().splitlines(), whole("local")[2].splitlines()
    assert [row.rsplit(",", 1)[0] for row in rows] == [row.rsplit(",", 1)[0] for row in wanted]


def test_a_run_without_a_seed_can_be_resumed_as_the_hint_says(tmp_path):
    def go(callback, ambient, folder, seed=None):
        net = jobs.bayesian()
        torch.manual_seed(ambient)  # every process has its own
        settings = {"epochs": 4, "batch_size": 9, "seed": seed, "callbacks": [callback]}
        return kasuri.fit(net, jobs.moons(40), folder=folder, **settings)

    with pytest.raises(kasuri.training.Interrupted):
        go(Stop(5, jobs.interrupt), 1, tmp_path)
    fitted = go(Stop(), 2, tmp_path)
    seed = checkpoint.read(tmp_path)["settings"]["seed"]
    other = go(Stop(), 3, tmp_path / "whole", seed=seed)
    assert differences(other.objective.state_dict(), fitted.objective.state_dict()) == []


def test_the_same_objects_can_be_given_again_after_control_c(tmp_path):
    def made():
        prior = kasuri.Normal(0.3, learn="gradient")
        return kasuri.ELBO(jobs.bayesian(outputs=1), kasuri.Gaussian(), prior, num_data=40)

    def go(elbo, callback, folder):
        settings = {"epochs": 3, "batch_size": 10, "seed": 0, "callbacks": [callback]}
        return kasuri.fit(elbo, jobs.line(40), folder=folder, **settings)

    elbo = made()
    with pytest.raises(kasuri.training.Interrupted):
        go(elbo, Stop(5, jobs.interrupt), tmp_path / "two")
    go(elbo, Stop(), tmp_path / "two")  # as in a notebook's cell that is run again
    whole = go(made(), Stop(), tmp_path / "one")
    assert jobs.equal(whole.objective, elbo)


def test_damaged_and_foreign_files_are_refused_and_run_no_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "code was run"),)

    path = tmp_path / "checkpoint.pt"
    run("local", tmp_path, epochs=1)
    data = path.read_bytes()
    for keep in (0.0, 0.01, 0.5, 0.999):
        path.write_bytes(data[: int(len(data) * keep)])
        with pytest.raises(kasuri.training.CheckpointError, match="damaged"):
            run("local", tmp_path, epochs=1)
    for content in (torch.zeros(3), {"no": "format"}, [1], Trap()):
        torch.save(content, path)
        with pytest.raises(kasuri.training.CheckpointError, match="damaged"):
            run("local", tmp_path)
    assert not (tmp_path / "code was run").exists()
    torch.save({"format": checkpoint.FORMAT + 1}, path)
    with pytest.raises(kasuri.training.CheckpointError, match=f"format {checkpoint.FORMAT + 1}"):
        run("local", tmp_path)


def go_small(folder, data=lambda: jobs.moons(40), net=jobs.bayesian, **changes):
    settings = {"epochs": 2, "batch_size": 10, "seed": 0, "temperature": 0.5} | changes
    return kasuri.fit(net(), data(), folder=folder, **settings)


def other_targets():
    x, y = jobs.moons(40)
    return x, torch.zeros_like(y)


def test_other_settings_are_refused_by_name(tmp_path):
    go_small(tmp_path)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    for words, changes in (
        ("epochs: 2 then, 3 now", {"epochs": 3}),
        ("seed: 0 then, 1 now", {"seed": 1}),
        ("steps per epoch: 4 then, 5 now", {"batch_size": 8}),
        ("number of data: 40 then, 38 now", {"data": lambda: jobs.moons(38)}),
        ("targets", {"data": other_targets}),
        (
            "optimiser: Natural then, SGD now",
            {"optimiser": lambda o: torch.optim.SGD(o.parameters(), 0.1)},
        ),
        ("parameters", {"net": lambda: jobs.bayesian(family=kasuri.KTied(rank=2))}),
        ("temperature", {"temperature": 0.1}),
        ("learning.rate", {"learning_rate": 0.5}),
        ("prior", {"prior": kasuri.Normal(0.1)}),
        ("callbacks", {"callbacks": [Stop()]}),
    ):
        with pytest.raises(kasuri.training.CheckpointError, match=words):
            go_small(tmp_path, **changes)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_generators_go_back_where_they_were():
    def numbers():
        return torch.rand(3).tolist(), random.gauss(0, 1), random.random(), np.random.rand()

    def seeded():
        torch.manual_seed(7)
        np.random.seed(7)
        random.seed(7)
        random.gauss(0, 1)  # leaves a second value for later

    seeded()
    first = numbers()
    seeded()
    with checkpoint.generators_restored():
        torch.manual_seed(77)
        numbers()
    assert numbers() == first


def test_what_stopped_a_run_can_be_told_to_another_process():
    told = pickle.loads(
        pickle.dumps(kasuri.training.Interrupted("stopped; call again", "epoch 3, step 7"))
    )
    assert (str(told), told.where) == ("stopped; call again", "epoch 3, step 7")
