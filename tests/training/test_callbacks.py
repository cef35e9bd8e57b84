"""What a run tells: history, callbacks, CSV file, the progress bar."""

import csv
import io
import sys

import pytest
import rich.console
import torch

import kasuri
from kasuri.training import callbacks, checkpoint, defaults
from tests.training.jobs import Boom, Stop, bayesian, interrupt, line, moons, network

COMMON = ["epoch", "step", "loss", "nll", "kl", "learning_rate"]


class Diary(kasuri.training.Callback):
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
    class Look(kasuri.training.Callback):
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


def test_state_of_callbacks_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY", 0)

    class Counter(kasuri.training.Callback):
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

    def go(counter):
        settings = {"epochs": 3, "batch_size": 10, "seed": 0}
        kasuri.fit(network(), moons(40), folder=tmp_path, callbacks=[counter], **settings)
        return int(counter.count)

    with pytest.raises(Boom):
        go(Counter(stop=6))
    assert go(Counter()) == 12


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


# -- the progress bar --------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch):
    """What a terminal would show."""
    shown, console = io.StringIO(), rich.console.Console

    def pretend(*, stderr):
        assert stderr  # standard output belongs to the program's own results
        return console(file=shown, force_terminal=True, width=140, legacy_windows=False)

    monkeypatch.setattr(rich.console, "Console", pretend)
    return shown


def go(net, data, show=None, **settings):
    return kasuri.fit(net, data, epochs=3, batch_size=10, seed=0, show=show, **settings)


def test_quiet_without_a_terminal(capfd, tmp_path):
    go(bayesian(), moons(40), folder=tmp_path)
    go(network(), moons(40))
    with pytest.raises(kasuri.training.Interrupted):
        go(network(), moons(40), callbacks=[Stop(1, interrupt)])
    assert capfd.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_by_itself(terminal, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    go(bayesian(), moons(40))
    assert "training" in terminal.getvalue()
    seen = len(terminal.getvalue())
    go(bayesian(), moons(40), show=False)
    assert len(terminal.getvalue()) == seen


def test_the_bar_shows_loss_nll_kl_and_accuracy(terminal, capfd):
    fitted = go(bayesian(), moons(40), show="two moons")
    last = next(line for line in terminal.getvalue().splitlines()[::-1] if "100%" in line)
    assert "two moons" in last
    for name in ("loss", "nll", "kl"):
        assert f"{name} {fitted.history[-1][name]:.4g}" in last
    known = [f"accuracy {row['valid_accuracy']:.1%}" for row in fitted.history]
    assert any(one in last for one in known)
    assert capfd.readouterr() == ("", "")


def test_between_validations_the_last_one_is_shown(monkeypatch):
    seen = []
    monkeypatch.setattr(callbacks.Bar, "step", lambda _, done, numbers: seen.append(numbers()))
    epochs = 3 * defaults.CHECKS  # validated every third epoch
    fitted = kasuri.fit(network(), moons(8), moons(8), epochs=epochs, batch_size=8, seed=0)
    checked = ["valid_accuracy" in row for row in fitted.history]
    assert checked == [False, False, True] * defaults.CHECKS
    for epoch, told in enumerate(seen):  # one step each
        known = [row["valid_accuracy"] for row in fitted.history[:epoch][2::3]]
        assert told.get("accuracy") == (known[-1] if known else None)


def test_without_rich_there_is_a_sentence_only_if_a_bar_was_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ImportError, match=r"show=True.*pip install kasuri\[train\]"):
        go(network(), moons(40), show=True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert len(go(network(), moons(40)).history) == 3
