"""Do 90 % intervals hold 90 % of unseen targets? scikit-learn's diabetes table, five folds.

python examples/tabular_coverage.py
"""

import numpy as np
import torch
from scipy import stats
from sklearn.datasets import load_diabetes
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import KFold

from kasuri.sklearn import BayesianRegressor

Array = np.ndarray
MODELS = {
    "defaults": {},
    'likelihood="gamma"': {"likelihood": "gamma"},
    'likelihood="heteroscedastic"': {"likelihood": "heteroscedastic"},
    "hidden_layer_sizes=(50, 50)": {"hidden_layer_sizes": (50, 50)},
}


def scores(model: BayesianRegressor, x: Array, y: Array) -> list[float]:
    """R², log-likelihood, share of targets inside 50 % and 90 % intervals, width of the latter."""
    metrics = model.evaluate(x, y)
    names = ("coverage_50", "coverage_90", "interval_width_90")
    return [model.score(x, y), -metrics["nll"], *(metrics[name] for name in names)]


def ridge_scores(model: BayesianRidge, x: Array, y: Array) -> list[float]:
    """The same of a linear model whose predictions are normal."""
    law = stats.norm(*model.predict(x, return_std=True))
    inside = [np.abs(2 * law.cdf(y) - 1) <= level for level in (0.5, 0.9)]
    width = law.ppf(0.95) - law.ppf(0.05)
    return [
        model.score(x, y),
        law.logpdf(y).mean(),
        *(part.mean() for part in inside),
        width.mean(),
    ]


def row(name: str, by_fold: list[list[float]]) -> str:
    """Mean and standard error over folds."""
    mean, error = np.mean(by_fold, 0), np.std(by_fold, 0, ddof=1) / np.sqrt(len(by_fold))
    cells = [f"{m:.3g} ± {e:.1g}" for m, e in zip(mean[:2], error[:2], strict=True)]
    cells += [f"{m:.1%} ± {e:.1%}" for m, e in zip(mean[2:4], error[2:4], strict=True)]
    return f"| {name} | {' | '.join(cells)} | {mean[4]:.0f} ± {error[4]:.0f} |"


def main(epochs: int | str = "auto", folds: int = 5, samples: int = 100) -> None:
    """Print one row per model."""
    torch.set_num_threads(1)  # such small layers lose more than they gain by sharing the work
    x, y = load_diabetes(return_X_y=True, scaled=False)
    parts = list(KFold(folds, shuffle=True, random_state=0).split(x))
    common = {"max_epochs": epochs, "n_samples": samples, "random_state": 0}
    print("| model | R² | log-likelihood | 50 % interval | 90 % interval | width |")
    print("| :-- | --: | --: | --: | --: | --: |")
    for name, settings in MODELS.items():
        by_fold = []
        for train, test in parts:
            model = BayesianRegressor(**settings, **common).fit(x[train], y[train])
            by_fold.append(scores(model, x[test], y[test]))
        print(row(name, by_fold), flush=True)
    ridge = [
        ridge_scores(BayesianRidge().fit(x[train], y[train]), x[test], y[test])
        for train, test in parts
    ]
    print(row("scikit-learn's BayesianRidge", ridge))


if __name__ == "__main__":
    main()
