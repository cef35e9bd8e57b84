"""Which temperature suits a table: several are tried on rows held out, all of them in one program."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from kasuri.checks import told
from kasuri.likelihoods import Likelihood
from kasuri.priors.base import Prior
from kasuri.sklearn.splitting import Rows
from kasuri.streams import mix
from kasuri.training.diagnose import NonFiniteLoss
from kasuri.training.fit import fit
from kasuri.training.fitted import Fitted
from kasuri.training.together import fit_many
from kasuri.training.validation import validate

# Bayes first, which is also what is taken if no score is a number. Real targets: below 0.1 intervals were too
# narrow on every table tried, and few noisy rows have their best between 1 and 0.3. Classes that can be told
# apart almost without error want much lower ones. All are trained for as long as the network that is kept:
# after half as many steps lower temperatures are ahead that are behind in the end
REAL = (1.0, 0.55, 0.3, 0.1)
CLASSES = (1.0, 0.3, 0.1, 0.03, 0.01)
_DRAWS = 16  # per network, to compare temperatures by
_SCORES = 16  # a stream of random numbers


@dataclass(frozen=True)
class Task:
    """A network to be trained on a table, all but its temperature.

    Args:
        net: makes a new one, from torch's global generator.
        x: scaled inputs (rows, columns).
        y: targets as the network sees them.
        likelihood: of the targets.
        prior: of the weights.
        options: of `kasuri.fit` without its temperature.
        seed: of all noise.
        show: a progress bar.
        title: of the progress bar.
    """

    net: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    likelihood: Likelihood
    prior: Prior
    options: Mapping[str, Any]
    seed: int
    show: bool
    title: str

    def data(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows."""
        return self.x[rows], self.y[rows]

    def fit(self, rows: Rows, temperature: Any) -> Fitted:
        """One network, by the rows held out if there are any; without them there is nothing to wait for."""
        options = dict(self.options) | ({"patience": None} if rows.held is None else {})
        return fit(
            self.net(),
            self.data(rows.rest),
            None if rows.held is None else self.data(rows.held),
            temperature=temperature,
            **self._common(),
            **options,
        )

    def fit_many(self, folds: Sequence[Rows], temperatures: Sequence[float]) -> list[Fitted]:
        """A network for every fold and temperature; the epochs of a single fold are chosen on it as well."""
        # networks on the same rows are given the same tensors, which are then held once
        trains = [self.data(rows.rest) for rows in folds]
        only = folds[0].held if len(folds) == 1 else None
        count = len(temperatures)
        return fit_many(
            [self.net() for _ in range(len(folds) * count)],
            [train for train in trains for _ in range(count)],
            None if only is None else [self.data(only)] * count,
            temperature=list(temperatures) * len(folds),
            **self._common(),
            **{name: value for name, value in self.options.items() if name != "patience"},
        )

    def _common(self) -> dict[str, Any]:
        return {
            "likelihood": copy.deepcopy(self.likelihood),  # every network learns its own
            "prior": copy.deepcopy(self.prior),
            "seed": self.seed,
            "show": self.show,
            "title": self.title,
        }


class Choice(NamedTuple):
    """What trying several temperatures found.

    Args:
        temperature: the best.
        scores: held-out NLL per row of every temperature.
        fitted: the network that had it, if there was one fold only.
    """

    temperature: float
    scores: dict[float, float]
    fitted: Fitted | None


def choose(task: Task, folds: Sequence[Rows], temperatures: Sequence[float]) -> Choice:
    """The temperature whose networks predict rows best that they were not trained on."""
    fits = _trained(task, folds, temperatures)
    scores = dict.fromkeys(temperatures, 0.0)
    for number, rows in enumerate(folds):
        assert rows.held is not None
        x, y = task.data(rows.held)
        for place, temperature in enumerate(temperatures):
            one = fits[number * len(temperatures) + place]
            nll = math.inf if one is None else _score(one, x, y, task.seed)
            scores[temperature] += nll / len(folds)
    best = min(scores, key=lambda t: scores[t] if math.isfinite(scores[t]) else math.inf)
    return Choice(best, scores, fits[temperatures.index(best)] if len(folds) == 1 else None)


def _score(fitted: Fitted, x: Tensor, y: Tensor, seed: int) -> float:
    return validate(fitted.objective, x, y, _DRAWS, mix(seed, _SCORES))["nll"]


def _trained(
    task: Task, folds: Sequence[Rows], temperatures: Sequence[float]
) -> Sequence[Fitted | None]:
    """A network for every fold and temperature, None for one that diverged."""
    try:
        return task.fit_many(folds, temperatures)
    except MemoryError:
        raise
    except Exception as error:
        # priors and families of the user's own may not run as a stack; and if it is something else, the
        # fit of one network says what
        reason = told(error)
    found: list[Fitted | None] = []
    for rows in folds:
        for temperature in temperatures:
            try:
                one = task.fit(rows if len(folds) == 1 else Rows(rows.rest, None), temperature)
            except NonFiniteLoss as error:
                one, failure = None, error
            if one is not None and not any(found):
                warnings.warn(
                    f"the networks cannot be trained together ({reason}), so one after the other, which "
                    "takes longer; a temperature of your own, e.g. temperature=0.3, saves choosing it",
                    stacklevel=6,
                )
            found.append(one)
    if not any(found):
        raise failure
    return found
