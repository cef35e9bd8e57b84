"""Reading result files, pooling seeds, marking the best."""

import json
import math

import pytest
from scipy import stats

from experiments.report import Result, compare, read
from experiments.report.score_tables import gains, verdict
from tests.report import samples


def run(variant, seed=0, **sections):
    return Result("e", variant, seed, **sections)


def cells(results, key="nll", **options):
    (table,) = compare(results, **options)
    return {row.name: row.cells.get(key) for row in table.rows}


def test_everything_written_is_read_back(tmp_path):
    runs = samples.stored("results/k-tied/mnist-mlp", "results/quality/uci-energy")
    results, problems = read(samples.write(tmp_path, runs))
    assert not problems
    assert len(results) == len(runs)
    by_name = {(r.experiment, r.variant, r.seed): r for r in results}
    for told in runs:
        result = by_name[told["experiment"], told["variant"], told["seed"]]
        assert result.metrics == {k: v for k, v in told["metrics"].items() if v is not None}
        assert result.published == (told["published"] or {})
        assert list(result.history) == told["history"]
        assert (result.parameters, result.dirty) == (told["parameters"], told["dirty"])


def test_files_are_in_natural_order_and_each_is_read_once(tmp_path):
    runs = [samples.run("v", seed) for seed in (10, 2, 1)]
    runs += [samples.run(f"tau-{tau:g}") for tau in (0.01, 0.005, 10.0, 0.1, 1.0)]
    folder = samples.write(tmp_path, runs)
    results, problems = read([folder, str(folder), folder / "e/v/2.json"])
    assert not problems
    assert [r.variant for r in results[:5]] == [f"tau-{t}" for t in ("0.005", "0.01", "0.1", 1, 10)]
    assert [r.seed for r in results[5:]] == [1, 2, 10]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((junk, "cannot be read") for junk in (b"{", b"\xff\xfe\x00", b"")),
        ({"format": 2}, "format 2"),
        ({"format": None}, "format null"),
        ({"variant": None}, "'variant'"),
        ({"seed": None}, "'seed'"),
    ],
)
def test_a_bad_file_is_named_with_the_reason_and_the_others_are_read(tmp_path, content, reason):
    folder = samples.write(tmp_path, [samples.run()])
    bad = tmp_path / "bad.json"
    if isinstance(content, dict):
        content = json.dumps(samples.run(seed=7) | content).encode()
    bad.write_bytes(content)
    results, problems = read(folder)
    assert len(results) == 1
    (problem,) = problems
    assert problem.startswith(f"{bad}: ")
    assert reason in problem


def test_other_json_files_are_passed_over_and_copies_are_told(tmp_path):
    (tmp_path / "other.json").write_text('{"results": []}')
    (tmp_path / "list.json").write_text("[1]")
    assert read(tmp_path) == ([], [])
    for name in ("a", "copy"):
        (tmp_path / f"{name}.json").write_text(json.dumps(samples.run()))
    results, problems = read(tmp_path)
    assert len(results) == 1
    assert [problem.partition(":")[0] for problem in problems] == [str(tmp_path / "copy.json")]
    (problem,) = read(tmp_path / "absent.json")[1]
    assert "No such file" in problem


def test_seeds_are_pooled_with_their_standard_error():
    values = [1.0, 2.0, 4.0]
    runs = [run("a", s, metrics={"nll": v, "nll_sem": 9.0}) for s, v in enumerate(values)]
    cell = cells([*runs, run("a", 3)])["a"]
    assert cell.value == pytest.approx(sum(values) / 3), "over the seeds that have the score"
    assert cell.error == pytest.approx(stats.sem(values))


def test_smoke_runs_have_a_table_of_their_own():
    runs = [run("a", metrics={"nll": 2.0}), run("a", 1, smoke=True, metrics={"nll": 0.1})]
    real, smoke = compare([*runs, run("b", metrics={"nll": 3.0})])
    assert [row.cells["nll"].mark for row in real.rows] == ["best", ""]
    assert (real.name, smoke.name) == ("e", "e (smoke)")
    assert any("Smoke" in note for note in smoke.notes)


def test_one_seed_has_the_error_over_examples():
    runs = [run("a", metrics={"nll": 1.0, "nll_sem": 0.25})]
    assert (cells(runs)["a"].value, cells(runs)["a"].error) == (1.0, 0.25)
    assert "standard error" in compare(runs)[0].notes[0]
    assert compare([run("a", metrics={"nll": 1.0})])[0].notes == ()


@pytest.mark.parametrize(
    ("key", "values", "best"),
    [
        ("nll", [0.2, 0.1, 0.3], 1),
        ("accuracy", [0.8, 0.7, 0.9], 2),
        ("coverage_90", [0.99, 0.80, 0.93], 2),
        ("ood_auroc_entropy", [0.9, math.nan, 0.8], 0),
        ("nll", [-5.0, -math.inf, 0.0], 0),
        ("eta", [1.0, 2.0, 3.0], None),
    ],
)
def test_the_best_value_depends_on_the_score(key, values, best):
    runs = [run(str(i), metrics={key: value}) for i, value in enumerate(values)]
    marks = [cell.mark for cell in cells(runs, key).values()]
    assert marks == ["best" if i == best else "" for i in range(3)]
    assert cells(runs[:1], key)["0"].mark == "", "one variant has no best"


@pytest.mark.parametrize(
    ("gap", "marks"), [(0.0, ["best"] * 2), (0.049, ["best", "tied"]), (0.051, ["best", ""])]
)
def test_ties_are_within_one_standard_error_of_the_difference(gap, marks):
    """The standard error of the difference of 0.03 and 0.04 is 0.05."""
    first = run("a", metrics={"nll": 1.0, "nll_sem": 0.03})
    other = run("b", metrics={"nll": 1.0 + gap, "nll_sem": 0.04})
    assert [cell.mark for cell in cells([first, other]).values()] == marks


def test_published_values_stand_beside_even_without_own_ones():
    paper = {"accuracy": (0.968, 0.0018), "nll": (0.129, None), "parameters": (484000.0, None)}
    runs = [run("a", metrics={"accuracy": 0.9}, published=paper)]
    (row,) = compare(runs)[0].rows
    assert row.cells["accuracy"].published == "96.80 ± 0.18"
    assert (row.cells["nll"].published, row.cells["nll"].value) == ("0.129", None)
    assert row.cells["parameters"].published == "484,000"
    (row,) = compare([run("a", validation={"nll": 2.0}, published=paper)], validation=True)[0].rows
    assert row.cells.keys() == {"nll"}, "papers print test scores"
    assert (row.cells["nll"].value, row.cells["nll"].published) == (2.0, "")


def test_seeds_with_different_settings_are_told():
    runs = [run("a", s, settings={"epochs": 10 + s, "seed": s, "data": "x"}) for s in (0, 1)]
    assert any("different epochs" in note for note in compare(runs)[0].notes)
    older = [run("a", 0, settings={"epochs": 1}), run("a", 1, settings={"epochs": 1, "rise": "x"})]
    assert not any("different" in note for note in compare(older)[0].notes)


@pytest.mark.parametrize(
    ("value", "error", "key", "text"),
    [
        (0.31842, 0.0123, "nll", "0.318 ± 0.012"),
        (0.31842, 0.00123, "nll", "0.3184 ± 0.0012"),
        (0.88971, 0.0031, "accuracy", "88.97 ± 0.31"),
        (0.31842, 1e-9, "nll", "0.3184 ± <0.0001"),
        (0.31842, 0.0, "nll", "0.3184 ± 0.0000"),
        (math.nan, 0.1, "nll", "not finite"),
        (1e300, 1e300, "nll", "1.00e+300 ± 1.00e+300"),
    ],
)
def test_digits_follow_the_standard_error(value, error, key, text):
    assert str(cells([run("a", metrics={key: value, f"{key}_sem": error})], key)["a"]) == text


def test_differences_are_taken_seed_by_seed():
    """Seeds differ by 5 nats, the variants by 0.3 ± 0.1 within each."""
    base = [-90.0, -95.0, -100.0]
    runs = [run("diagonal", s, metrics={"elbo": value}) for s, value in enumerate(base)]
    runs += [run("b", s, metrics={"elbo": base[s] + d}) for s, d in enumerate((0.2, 0.3, 0.4))]
    runs += [run("c", 2, metrics={"elbo": -99.0})]
    name, rows = gains(compare(runs)[0].rows)
    assert name == "differences to diagonal"
    assert rows[1:] == [
        ["b", "ELBO", "+0.30 ± 0.06", "better by more than the noise"],
        ["c", "ELBO", "+1.00", "not known from one seed"],
    ]
    assert gains(compare(runs[:3])[0].rows) == ("", [])


def test_the_noise_is_the_interval_of_student_s_t():
    assert verdict(0.43, 0.1, 3) == "within the noise", "4.303 standard errors"
    assert verdict(-0.44, 0.1, 3) == "worse by more than the noise"
    assert verdict(0.21, 0.1, 30) == "better by more than the noise"
