"""The progress bar: numbers in a terminal, silence elsewhere."""

import builtins
import io

import pytest
import rich.console

import kasuri
from kasuri.training import defaults, progress
from tests.training.jobs import Stop, bayesian, interrupt, line, moons, network


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
    go(bayesian(), moons(40), folder=tmp_path, tensorboard=True)
    go(network(), moons(40))
    with pytest.raises(kasuri.Interrupted):
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
    fitted = go(bayesian(), moons(40), show=True, title="two moons")
    last = next(line for line in terminal.getvalue().splitlines()[::-1] if "100%" in line)
    assert "two moons" in last
    for name in ("loss", "nll", "kl"):
        assert f"{name} {fitted.history[-1][name]:.4g}" in last
    known = [f"accuracy {row['valid_accuracy']:.1%}" for row in fitted.history]
    assert any(one in last for one in known)
    assert capfd.readouterr() == ("", "")


def test_the_bar_of_a_regression_shows_its_error(terminal):
    fitted = go(bayesian(outputs=1), line(40), show=True)
    assert f"rmse {fitted.history[-2]['valid_rmse']:.4g}" in terminal.getvalue()


class Recorder(progress.Quiet):
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def step(self, done, numbers):
        self.told.append(numbers)


def test_between_validations_the_last_one_is_shown(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(progress, "make", lambda *_: recorder)
    epochs = 3 * defaults.CHECKS  # validated every third epoch
    fitted = kasuri.fit(network(), moons(8), moons(8), epochs=epochs, batch_size=8, seed=0)
    checked = ["valid_accuracy" in row for row in fitted.history]
    assert checked == [False, False, True] * defaults.CHECKS
    for epoch, told in enumerate(recorder.told):  # one step each
        known = [row["valid_accuracy"] for row in fitted.history[:epoch][2::3]]
        assert told.get("accuracy") == (known[-1] if known else None)


def test_the_bar_goes_on_where_a_resumed_run_does(terminal, tmp_path):
    settings = {"show": True, "folder": tmp_path, "temperature": 0.1}
    with pytest.raises(kasuri.Interrupted):
        go(bayesian(), moons(40), callbacks=[Stop(5, interrupt)], **settings)
    assert " 50%" in terminal.getvalue()
    assert "100%" not in terminal.getvalue()
    terminal.truncate(0)
    go(bayesian(), moons(40), callbacks=[Stop()], resume=True, **settings)
    assert "100%" in terminal.getvalue()
    assert " 25%" not in terminal.getvalue()


def test_the_cursor_comes_back_after_a_failure(terminal):
    with pytest.raises(kasuri.Interrupted):
        go(bayesian(), moons(40), show=True, callbacks=[Stop(1, interrupt)])
    text = terminal.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # hidden once, shown once


@pytest.fixture
def without_rich(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.partition(".")[0] == "rich":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_rich_there_is_a_sentence_only_if_a_bar_was_asked_for(without_rich, monkeypatch):
    with pytest.raises(ImportError, match=r"pip install kasuri\[train\]"):
        go(network(), moons(40), show=True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert len(go(network(), moons(40)).history) == 3
    assert isinstance(progress.make(None, "title", 3), progress.Quiet)


def test_the_sentence_names_the_argument_as_it_is_written(without_rich):
    with pytest.raises(ImportError, match="show=True"):
        go(network(), moons(40), show=True)


def test_lines_above_the_bar_are_taken_literally(terminal):
    with progress.make(True, "title", 2) as bar:
        bar.say("saved to [runs/first]")
    assert "saved to [runs/first]" in terminal.getvalue()
