"""What a run tells: history, callbacks, CSV file, TensorBoard events."""

import csv

import pytest
import torch

import kasuri
from tests.training.jobs import Boom, bayesian, line, moons, network, timeless

COMMON = ["epoch", "step", "loss", "nll", "kl", "learning_rate"]


class Diary(kasuri.Callback):
    """Writes down what it is told."""

    def __init__(self, name="", pages=None):
        self.name, self.pages = name, [] if pages is None else pages
        self.rows, self.terms = [], []

    def on_step(self, objective, step, terms):
        self.pages.append(f"{self.name}step {step}")
        self.terms.append([float(term.detach()) for term in terms])

    def on_epoch(self, objective, row):
        self.pages.append(f"{self.name}epoch {row['epoch']}")
        self.rows.append(dict(row))

    def on_end(self):
        self.pages.append(f"{self.name}end")


@pytest.mark.parametrize(
    ("make", "data", "valid", "keys"),
    [
        (bayesian, moons, True, ["temperature", "kl_weight", "valid_nll", "valid_accuracy"]),
        (
            lambda: bayesian(outputs=1),
            line,
            True,
            ["temperature", "kl_weight", "valid_nll", "valid_rmse"],
        ),
        (network, moons, False, []),
    ],
)
def test_history_has_one_row_of_means_per_epoch(make, data, valid, keys):
    diary = Diary()
    more = {"valid": data(20, seed=1)} if valid else {}
    fitted = kasuri.fit(make(), data(40), epochs=3, batch_size=8, seed=0, callbacks=[diary], **more)
    assert [list(row) for row in fitted.history] == [[*COMMON, *keys, "seconds"]] * 3
    for number, row in enumerate(fitted.history):
        assert (row["epoch"], row["step"]) == (number + 1, 5 * number + 5)
        mine = torch.tensor(diary.terms[5 * number : 5 * number + 5], dtype=torch.float64).mean(0)
        assert [row["loss"], row["nll"], row["kl"]] == pytest.approx(mine.tolist(), rel=1e-12)
    assert diary.rows == fitted.history
    assert all(row["seconds"] > 0 for row in fitted.history)
    assert sum(row["seconds"] for row in fitted.history) <= fitted.seconds + 1e-9


def test_callbacks_are_told_in_order():
    pages = []
    both = [Diary("a ", pages), Diary("b ", pages)]
    kasuri.fit(network(), moons(20), epochs=2, batch_size=10, seed=0, callbacks=both)
    told = ["step 0", "step 1", "epoch 1", "step 2", "step 3", "epoch 2", "end"]
    assert pages == [f"{name} {what}" for what in told for name in ("a", "b")]


def test_gradients_are_there_and_parameters_not_yet_moved_in_on_step():
    class Look(kasuri.Callback):
        def __init__(self, net):
            self.net, self.before, self.seen = net, None, 0

        def on_step(self, objective, step, terms):
            grads = torch.autograd.grad(
                objective(*moons(20), step=step).loss, list(self.net.parameters())
            )
            for parameter, grad in zip(self.net.parameters(), grads, strict=True):
                torch.testing.assert_close(parameter.grad, grad)
            self.seen += 1

    net = network()
    look = Look(net)
    kasuri.fit(net, moons(20), epochs=3, batch_size=20, learning_rate=0.1, seed=0, callbacks=[look])
    assert look.seen == 3


def test_callbacks_learn_of_the_end_also_after_a_failure():
    class Bad(Diary):
        def on_epoch(self, objective, row):
            raise Boom

    bad, other = Bad(), Diary()
    with pytest.raises(Boom):
        kasuri.fit(network(), moons(20), epochs=2, batch_size=20, seed=0, callbacks=[bad, other])
    assert (bad.pages, other.pages) == (["step 0", "end"], ["step 0", "end"])


def test_state_of_callbacks_is_kept(tmp_path):
    class Counter(kasuri.Callback):
        def __init__(self, stop=None):
            self.count, self.stop = torch.zeros((), dtype=torch.int64), stop

        def on_step(self, objective, step, terms):
            self.count += 1
            if step == self.stop:
                raise Boom

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    def go(counter, resume):
        settings = {"epochs": 3, "batch_size": 10, "save_every": 0, "seed": 0}
        kasuri.fit(
            network(), moons(40), folder=tmp_path, resume=resume, callbacks=[counter], **settings
        )
        return int(counter.count)

    with pytest.raises(Boom):
        go(Counter(stop=6), False)
    assert go(Counter(), True) == 12


def test_the_csv_file_is_the_history(tmp_path):
    # epochs above CHECKS: some rows have no validation
    fitted = kasuri.fit(
        bayesian(), moons(20), moons(20, seed=1), epochs=41, batch_size=20, seed=0, folder=tmp_path
    )
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert "" in [row["valid_nll"] for row in rows]
    numbers = [{k: float(v) for k, v in row.items() if v} for row in rows]
    assert numbers == fitted.history
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint.pt", "history.csv"]


def test_tensorboard_reads_the_history(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fitted = kasuri.fit(
        bayesian(), moons(40), epochs=3, batch_size=20, seed=0, folder=tmp_path, tensorboard=True
    )
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    names = fitted.history[0].keys() - {"epoch", "step"}
    assert set(events.Tags()["scalars"]) == names
    for name in names:
        seen = events.Scalars(name)
        assert [one.step for one in seen] == [1, 2, 3]
        assert [one.value for one in seen] == pytest.approx([row[name] for row in fitted.history])


def test_without_tensorboard_installed_there_is_a_sentence(tmp_path, monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *rest):
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install kasuri\[train\]"):
        kasuri.fit(network(), moons(20), epochs=1, folder=tmp_path, tensorboard=True, seed=0)


def test_a_folder_changes_nothing(tmp_path):
    settings = {"epochs": 3, "batch_size": 10, "seed": 0}
    with_one = kasuri.fit(bayesian(), moons(40), folder=str(tmp_path / "a" / "b"), **settings)
    without = kasuri.fit(bayesian(), moons(40), **settings)
    assert timeless(with_one.history) == timeless(without.history)
    assert (tmp_path / "a" / "b" / "checkpoint.pt").is_file()
