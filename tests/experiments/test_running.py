"""Every experiment runs, and its result file tells what was run."""

import json
import pickle
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from experiments import catalog, quality, results
from experiments import data as datasets
from experiments.compressed import Compressed
from experiments.data.dataset import Dataset
from experiments.generative import Generative
from experiments.networks import ELUMLP, LSTM, MLP, VGG, LeNet, LeNet5, ResNet
from experiments.report import read
from experiments.running import Plan, changed, run_one
from experiments.spec import Experiment, Where
from experiments.splits import Splits
from experiments.supervised import Supervised
from experiments.tempered import Tempered
from experiments.tempered_networks import CifarResNet, TwoLayer
from experiments.truncation import Truncation
from experiments.wide import Wide
from kasuri.training.distributed import Processes

ALONE = Processes()
TINY = replace(
    catalog.variants("demo/digits")["k-tied-2"], epochs=2, limit=120, samples=3, network=MLP((8,))
)


SMALL = {
    MLP: lambda net: MLP((6, 5, 4)[: len(net.hidden)], dropout=net.dropout),
    LeNet: lambda net: LeNet((2, 3), net.kernel, hidden=8),
    ELUMLP: lambda net: ELUMLP((6, 5)),
    VGG: lambda net: VGG(((2,), (3,), (2,), (2,))),
    LSTM: lambda net: LSTM(net.vocabulary, width=4),
    ResNet: lambda net: ResNet((2, 2, 3, 3)),
    LeNet5: lambda net: LeNet5((2, 3), hidden=8),
    TwoLayer: lambda net: replace(net, hidden=6),
    CifarResNet: lambda net: replace(net, blocks=1, widths=(2, 3, 4)),
}


def trained(experiment: Experiment) -> Supervised:
    """The experiment that trains the network."""
    found = experiment.base if isinstance(experiment, Truncation) else experiment
    assert isinstance(found, Supervised)
    return found


def needs(experiment: Experiment) -> list[str]:
    if isinstance(experiment, Splits):
        return [f"uci/{experiment.table}"]
    if isinstance(experiment, Generative):
        return [experiment.data]
    if isinstance(experiment, Wide):
        return []
    base = trained(experiment)
    return [name for name in (base.data, base.outside) if name not in (None, "noise")]


def shrunk(experiment: Experiment) -> Experiment:
    """The smoke run with a network of few weights."""
    smoke = experiment.smoke()
    if isinstance(smoke, Splits):
        return replace(smoke, hidden=4)
    if isinstance(smoke, Generative):
        return replace(smoke, hidden=(6, 5))
    if isinstance(smoke, Wide):
        return smoke
    base = trained(smoke)
    base = replace(base, network=SMALL[type(base.network)](base.network))
    return replace(smoke, base=base) if isinstance(smoke, Truncation) else base


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch):
    """Pictures take seconds to read, and every experiment of a paper reads the same."""
    monkeypatch.setattr("kasuri.experiments.supervised.datasets.load", _load)


def _load(name: str, **options: Any) -> Dataset:
    key = (name, *sorted(options.items()))
    if key not in _LOADED:
        if len(_LOADED) > 2:
            _LOADED.clear()
        _LOADED[key] = _real_load(name, **options)
    return _LOADED[key]


_LOADED: dict[Any, Dataset] = {}
_real_load = datasets.load


def missing(names: list[str]) -> list[str]:
    present = {one.name for one in datasets.status() if one.present}
    return [name for name in names if name not in present]


def without_length(name: str) -> str:
    return re.sub("-(quick|short|medium)$", "", name)


def representative() -> list[Experiment]:
    """Every row, but of those that differ in numbers, length or table only the last."""
    last: dict[tuple[str, str], Experiment] = {}
    for one in catalog.ALL:
        whole = without_length(one.name)
        key = (whole, one.variant.rstrip("0123456789"))
        if isinstance(one, Tempered):
            key = (whole, one.series)
        elif isinstance(one, Wide):
            key = (whole, one.rule)
        elif isinstance(one, Compressed):
            key = (whole, one.variant.removesuffix("-4x"))
        elif isinstance(one, Splits) and one.table != "boston" and one.variant != "mean-field":
            continue
        last[key] = one
    return list(last.values())


def test_every_experiment_is_tried_in_one_of_its_lengths():
    tried = {without_length(one.name) for one in representative()}
    assert tried == {without_length(one.name) for one in catalog.ALL}


def kind(experiment: Experiment) -> tuple[Any, ...]:
    """What a program consists of: rows with the same differ in numbers."""
    base = experiment.base if isinstance(experiment, Truncation) else experiment
    parts = (getattr(base, name, None) for name in ("network", "family", "latent", "criterion"))
    return type(experiment), *(one if isinstance(one, str) else type(one) for one in parts)


def cases() -> list[Any]:
    """Of every experiment the first row, and rows that are of a new kind; all others are thorough."""
    names: set[str] = set()
    kinds: set[tuple[Any, ...]] = set()
    found = []
    for one in representative():
        is_known = without_length(one.name) in names and kind(one) in kinds
        names.add(without_length(one.name))
        kinds.add(kind(one))
        marks = [pytest.mark.thorough] * is_known
        found.append(pytest.param(one, id=f"{one.name}/{one.variant}", marks=marks))
    return found


@pytest.mark.parametrize("experiment", cases())
def test_smoke_run_writes_a_result_that_the_report_reads(experiment, tmp_path):
    if absent := missing(needs(experiment)):
        pytest.skip(f"{absent} not on this machine: set KASURI_DATA")
    plan = Plan(tmp_path / "results", tmp_path / "runs", smoke=True)
    path = run_one(shrunk(experiment), 3, plan, ALONE, say=lambda text: None)
    assert path == tmp_path / "results/smoke" / experiment.name / experiment.variant / "3.json"
    (found,), problems = read([path])
    assert not problems
    content = json.loads(path.read_text())
    assert content["seed"] == 3
    assert content["smoke"] is True
    told = content["settings"]
    if "steps" in told:
        assert not told.get("epochs")
    else:
        assert told.get("epochs", told.get("base epochs")) == (
            5 if isinstance(experiment, Wide) else 2
        )
    assert len(content["history"]) >= 2
    score = "log_likelihood" if isinstance(experiment, Generative) else "nll"
    assert content["metrics"][score] == pytest.approx(content["metrics"][score])  # a number
    assert {"total", "train"} <= set(content["seconds"])
    assert found.experiment == experiment.name


def test_experiments_have_different_places():
    places = [results.place(Path(), one, 0) for one in catalog.ALL]
    assert len(set(places)) == len(places)


def test_experiments_can_be_handed_to_another_process():
    for one in catalog.ALL:
        assert pickle.loads(pickle.dumps(one)).settings() == one.settings()


def test_catalog_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'quality/digits'"):
        catalog.variants("quality/digit")
    with pytest.raises(ValueError, match="'mean-field'"):
        catalog.choose("demo/digits", ["meanfield"])


def test_a_result_that_is_there_is_not_made_again(tmp_path):
    plan = Plan(tmp_path / "results", tmp_path / "runs")
    said: list[str] = []
    path = run_one(TINY, 0, plan, ALONE, said.append)
    before = path.read_bytes()
    assert run_one(TINY, 0, plan, ALONE, said.append).read_bytes() == before
    assert "is there" in said[-1]
    assert "differ" not in said[-1]
    run_one(replace(TINY, samples=4), 0, plan, ALONE, said.append)
    assert "settings differ" in said[-1]
    assert path.read_bytes() == before
    run_one(TINY, 0, replace(plan, force=True), ALONE, said.append)
    assert path.read_bytes() != before  # the time at least


def test_the_same_seed_gives_the_same_numbers(tmp_path):
    def metrics(seed: int, name: str) -> dict[str, float]:
        plan = Plan(tmp_path / name, tmp_path / name / "runs")
        path = run_one(TINY, seed, plan, ALONE, lambda text: None)
        return json.loads(path.read_text())["metrics"]

    assert metrics(0, "a") == metrics(0, "b")
    assert metrics(0, "a") != metrics(1, "c")


def test_an_interrupted_experiment_goes_on_to_the_same_result(tmp_path, monkeypatch):
    whole = TINY.run(0, Where(folder=tmp_path / "whole", show=False))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kasuri.experiments.supervised.save", killed)
    with pytest.raises(KeyboardInterrupt):
        TINY.run(0, Where(folder=tmp_path / "half", show=False))
    monkeypatch.undo()
    assert (tmp_path / "half/checkpoint.pt").exists()
    assert TINY.run(0, Where(folder=tmp_path / "half", show=False)).metrics == whole.metrics


def test_overrides_make_a_variant_of_their_own():
    other = changed(TINY, {"epochs": 7, "learning_rate": 0.5})
    assert other.variant == "k-tied-2,epochs=7,learning_rate=0.5"
    assert other.epochs == 7
    assert changed(TINY, {"epochs": TINY.epochs}) is TINY


def test_settings_are_json_and_complete():
    told = json.loads(json.dumps(TINY.settings()))
    assert told["family"].startswith("KTied(")
    assert told["network"] == "MLP(hidden=(8,), dropout=0.0)"
    left_out = {"name", "variant", "title", "published", "space"}
    assert set(told) == {one.name for one in fields(TINY)} - left_out


def test_a_sweep_does_not_look_at_test_data(tmp_path):
    found = TINY.run(0, Where(show=False, test=False))
    assert found.metrics == {}
    assert found.figures == {}
    assert found.validation["nll"] > 0


def test_quality_contenders_share_everything_but_the_method():
    variants = [one for one in quality.EXPERIMENTS if one.name == "quality/mnist"]
    same = ("data", "options", "outside", "epochs", "batch_size", "learning_rate", "samples")
    for name in same:
        assert len({repr(getattr(one, name)) for one in variants}) == 1, name


def test_failed_write_leaves_the_old_result(tmp_path, monkeypatch):
    plan = Plan(tmp_path / "results", tmp_path / "runs")
    path = run_one(TINY, 0, plan, ALONE, lambda text: None)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        run_one(TINY, 0, replace(plan, force=True, runs=tmp_path / "other"), ALONE, print)
    assert path.read_bytes() == before


def test_long_histories_are_thinned_but_keep_what_was_validated():
    history = [{"epoch": float(i), "loss": 1 / i} for i in range(1, 1001)]
    for row in history[24::25]:
        row["valid_nll"] = 0.5
    kept = results.thinned(history)
    assert [row for row in kept if "valid_nll" in row] == history[24::25]
    assert kept[-1] is history[-1]
    assert 100 <= len(kept) <= 145
    assert results.thinned(history[:50]) == history[:50]


def test_result_files_are_json_with_a_line_per_row():
    content = {"a": 1 / 3, "history": [{"x": 1}, {"x": 2}], "empty": [], "deep": {"b": [1.0]}}
    text = results.as_text(content)
    assert json.loads(text) == content | {"a": 0.3333333}
    assert len(text.splitlines()) == 9


def test_a_file_from_before_a_setting_existed_is_still_of_the_experiment():
    told = TINY.settings()
    assert TINY.made(told)
    older = {name: value for name, value in told.items() if name != "spread_rate"}
    assert TINY.made(older)
    assert not replace(TINY, spread_rate=2.0).made(older)
    assert not TINY.made(told | {"no longer known": 1})
