"""Reading result files, pooling seeds, marking the best."""

import json
import math
import os

import pytest

from experiments.report import Problem, Result, ResultError, compare, read
from experiments.report.values import decimals_for, fixed, number, short
from tests.report import samples


def run(variant, seed=0, *, experiment="e", **sections):
    return Result(experiment, variant, seed, **sections)


def cells(results, key="nll", **options):
    (group,) = compare(results, **options).groups
    return {row.name: row.cells.get(key) for row in group.rows}


def test_everything_written_is_read_back(tmp_path):
    runs = samples.every_result()
    results, problems = read(samples.write(tmp_path, runs))
    assert not problems
    assert len(results) == len(runs) == 11
    by_name = {(r.experiment, r.variant, r.seed): r for r in results}
    one, told = by_name["quality/fashion-mnist", "k-tied-2", 1], samples.fashion("k-tied-2", 1)
    assert one.metrics == told["metrics"]
    assert one.published["neg_elbo"] == (0.52, 0.0063)
    assert one.published["parameters"] == (484000, None)
    assert list(one.history) == told["history"]
    assert one.dirty
    assert not one.smoke


def test_files_are_in_natural_order_and_each_is_read_once(tmp_path):
    runs = [samples.regression("plain") | {"seed": seed} for seed in (10, 2, 1)]
    folder = samples.write(tmp_path, runs)
    results, problems = read([folder, str(folder), folder / "quality/boston/plain/2.json"])
    assert [r.seed for r in results] == [1, 2, 10]
    assert not problems


def test_variants_with_decimals_are_in_the_order_of_the_numbers(tmp_path):
    names = [f"tau-{tau:g}" for tau in (0.001, 0.005, 0.01, 0.1, 1.0, 10.0)]
    folder = samples.write(
        tmp_path, [samples.regression("plain") | {"variant": name} for name in sorted(names)]
    )
    assert [r.variant for r in read([folder])[0]] == names


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"", "not JSON"),
        ({"format": 2}, "format 2"),
        ({"format": None}, "format null"),
        ({"format": True}, "format true"),
        ({"variant": None}, "no 'variant'"),
        ({"experiment": ""}, "no 'experiment'"),
        ({"seed": "0"}, "no 'seed'"),
        ({"metrics": [1, 2]}, "'metrics' should be an object"),
        ({"history": {"epoch": 1}}, "'history' should be a list"),
    ],
)
def test_a_bad_file_is_named_with_the_reason_and_the_others_are_read(tmp_path, content, reason):
    folder = samples.write(tmp_path, [samples.regression("plain")])
    bad = tmp_path / "bad.json"
    if isinstance(content, dict):
        content = json.dumps(samples.regression("plain") | {"seed": 7} | content).encode()
    bad.write_bytes(content)
    results, problems = read(folder)
    assert len(results) == 1
    assert [problem.path for problem in problems] == [str(bad)]
    assert reason in problems[0].reason
    assert str(problems[0]).startswith(f"{bad}: ")


def test_other_json_files_are_passed_over_unless_asked_for(tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"results": []}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "folder.json").mkdir()
    assert read(tmp_path) == ([], [])
    assert "no 'experiment'" in read([other])[1][0].reason
    (problem,) = read(tmp_path / "absent.json")[1]
    assert "cannot be read: No such file" in problem.reason


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_problem(tmp_path):
    path = tmp_path / "0.json"
    path.write_text("{}")
    path.chmod(0)
    assert "Permission denied" in read(tmp_path)[1][0].reason


def test_a_copied_file_is_not_a_second_seed(tmp_path):
    folder = samples.write(tmp_path, [samples.regression("plain")])
    (tmp_path / "z-copy.json").write_text(json.dumps(samples.regression("plain")))
    results, problems = read(folder)
    assert len(results) == 1
    assert "the same variant and seed as" in problems[0].reason


def test_missing_sections_are_empty_and_odd_values_are_dropped():
    least = {"format": 1, "experiment": "e", "variant": "v", "seed": 3}
    result = Result.from_dict(least | {"metrics": None, "title": 5, "machine": None})
    assert (result.metrics, result.history, result.title, result.parameters) == ({}, (), "", None)
    odd = {
        "metrics": {"nll": 1, "text": "x", "flag": True, "none": None, "list": [1]},
        "published": {"nll": 0.5, "ece": [None, 1], "brier": [], "rmse": ["x"], "crps": [1, "x"]},
        "history": [1, None, {"epoch": 1}],
    }
    result = Result.from_dict(least | odd)
    assert result.metrics == {"nll": 1.0}
    assert result.published == {"nll": (0.5, None), "crps": (1.0, None)}
    assert result.history == ({"epoch": 1},)
    with pytest.raises(ResultError, match="format"):
        Result.from_dict({})


def test_seeds_are_pooled_with_their_standard_error():
    values = [1.0, 2.0, 4.0]
    runs = [run("a", s, metrics={"nll": v, "nll_sem": 9.0}) for s, v in enumerate(values)]
    cell = cells(runs)["a"]
    mean = sum(values) / 3
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    assert cell.value == pytest.approx(mean)
    assert cell.error == pytest.approx(deviation / math.sqrt(3))
    assert (cell.over, cell.count) == ("seeds", 3)


def test_one_seed_has_the_error_over_examples_and_the_table_says_which():
    runs = [run("a", metrics={"nll": 1.0, "nll_sem": 0.25})]
    cell = cells(runs)["a"]
    assert (cell.value, cell.error, cell.over) == (1.0, 0.25, "examples")
    assert any("over examples (one seed)" in note for note in compare(runs).groups[0].notes)
    runs += [run("b", s, metrics={"nll": 1.0 + s}) for s in (0, 1)]
    note = compare(runs).groups[0].notes[0]
    assert note.index("over seeds for b") < note.index("over examples (one seed) for a")


def test_errors_over_splits_are_called_so():
    split = run("a", metrics={"nll": 1.0, "nll_sem": 0.25}, figures={"splits": [{"split": 0.0}]})
    (note,) = compare([split]).groups[0].notes
    assert "over the splits of a table" in note


def test_a_score_that_some_seeds_lack_is_pooled_over_the_others():
    runs = [run("a", 0, metrics={"nll": 1.0}), run("a", 1), run("a", 2, metrics={"nll": 3.0})]
    assert (cells(runs)["a"].value, cells(runs)["a"].count) == (2.0, 2)


def test_smoke_runs_are_apart_and_never_best():
    runs = [run("a", metrics={"nll": 2.0}), run("a", 1, smoke=True, metrics={"nll": 0.1})]
    runs.append(run("b", metrics={"nll": 3.0}))
    found = cells(runs)
    assert {name: cell.mark for name, cell in found.items()} == {
        "a": "best",
        "a (smoke)": "",
        "b": "",
    }
    assert found["a"].value == 2.0
    assert any("Smoke" in note for note in compare(runs).groups[0].notes)


@pytest.mark.parametrize(
    ("key", "values", "best"),
    [
        ("nll", [0.2, 0.1, 0.3], 1),
        ("accuracy", [0.8, 0.7, 0.9], 2),
        ("coverage_90", [0.99, 0.80, 0.93], 2),
        ("ood_auroc_entropy", [0.9, math.nan, 0.8], 0),
        ("nll", [-5.0, -math.inf, 0.0], 0),
    ],
)
def test_the_best_value_depends_on_the_score(key, values, best):
    runs = [run(str(i), metrics={key: value}) for i, value in enumerate(values)]
    marks = [cell.mark for cell in cells(runs, key).values()]
    assert marks == ["best" if i == best else "" for i in range(3)]


def test_ties_are_within_one_standard_error_of_the_difference():
    def marks(gap):
        runs = [
            run("a", metrics={"nll": 1.0, "nll_sem": 0.03}),
            run("b", metrics={"nll": 1.0 + gap, "nll_sem": 0.04}),
        ]
        return [cell.mark for cell in cells(runs).values()]

    assert marks(0.0) == ["best", "best"]
    assert marks(0.049) == ["best", "tied"]
    assert marks(0.051) == ["best", ""]


def test_costs_and_single_variants_have_no_best():
    runs = [
        run(name, parameters=size, seconds={"train": size}) for name, size in [("a", 1), ("b", 2)]
    ]
    assert all(not cell.mark for cell in cells(runs, "parameters").values())
    assert all(not cell.mark for cell in cells(runs, "seconds").values())
    assert cells([run("a", metrics={"nll": 1.0})])["a"].mark == ""


def test_columns_are_those_that_some_row_has():
    table = compare(Result.from_dict(one) for one in samples.every_result())
    classification, regression = table.groups
    assert [c.key for c in regression.columns] == [
        *("parameters", "rmse", "nll", "crps", "coverage_90", "seconds")
    ]
    assert "rmse" not in {c.key for c in classification.columns}
    assert "neg_elbo" not in classification.rows[0].cells, "the plain network has none"
    assert [row.variant for row in classification.rows] == list(samples.FASHION)


def test_published_values_stand_beside_even_without_own_ones():
    paper = {"accuracy": (0.968, 0.0018), "nll": (0.129, None), "parameters": (484000.0, None)}
    runs = [run("a", metrics={"accuracy": 0.9}, published=paper)]
    (row,) = compare(runs).groups[0].rows
    assert row.cells["accuracy"].published == "96.80 ± 0.18"
    assert (row.cells["nll"].published, row.cells["nll"].value) == ("0.129", None)
    assert row.cells["parameters"].published == "484,000"


def test_seeds_with_different_settings_are_told():
    runs = [run("a", s, settings={"epochs": 10 + s, "seed": s, "data": "x"}) for s in (0, 1)]
    assert "a: its seeds were run with different epochs." in compare(runs).groups[0].notes


def test_a_setting_that_older_results_do_not_know_is_no_difference():
    known = {"seed": 0, "epochs": 10}
    runs = [run("a", 0, settings=known), run("a", 1, settings=known | {"rise": "linear"})]
    assert not any("different" in note for note in compare(runs).groups[0].notes)


def test_validation_scores_on_request():
    runs = [run("a", metrics={"nll": 1.0}, validation={"nll": 2.0})]
    assert cells(runs, validation=True)["a"].value == 2.0


def test_digits_follow_the_standard_error():
    def shown(value, error, key="nll"):
        return str(cells([run("a", metrics={key: value, f"{key}_sem": error})], key)["a"])

    assert shown(0.31842, 0.0123) == "0.318 ± 0.012"
    assert shown(0.31842, 0.00123) == "0.3184 ± 0.0012"
    assert shown(0.88971, 0.0031, "accuracy") == "88.97 ± 0.31"
    assert shown(0.31842, 1e-9) == "0.3184 ± <0.0001"
    assert shown(0.31842, 0.0) == "0.3184 ± 0.0000"
    assert shown(math.nan, 0.1) == "not finite"
    assert shown(1e300, 1e300) == "1.00e+300 ± 1.00e+300"


def test_numbers_that_no_float_holds():
    assert number(10**400) == math.inf
    assert number(-(10**400)) == -math.inf
    assert fixed(math.inf, 2) == "not finite"
    assert short(0.0) == "0"
    assert short(1e-7) == "1e-07"
    assert decimals_for([], [], most=4) == 1


def test_problem_is_a_line():
    assert str(Problem("a.json", "why")) == "a.json: why"
