"""The published estimator of test log-likelihoods: what its two slips do, and to the published values."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy import integrate, stats

from experiments import rdp_audit, uci_published

RESULTS = Path(__file__).parents[2] / "results/uci"

# published value, test points, scale of the target, and the error (in units of the target) at which the
# estimator gives that value
POWER = (-0.14, 957, 17.1, 4.3)
KIN8NM = (2.17, 819, 0.263, 0.094)
PROTEIN = (1.38, 4573, 6.1, 4.3)


def residuals(draws, points, size, seed=0):
    """Residuals of a calibrated regression: most of the error is common to all draws."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(1, points, generator=generator)
    own = torch.randn(draws, points, generator=generator)
    return size * (0.98**0.5 * common + 0.02**0.5 * own)


def gamma_of(size):
    """A posterior of the precision that knows the size of the noise."""
    return 2000.0, 2000.0 * size**2


@pytest.mark.parametrize("points", [31, 957, 4573])
def test_summing_over_points_adds_the_log_of_points_per_draw(points):
    """Log (N/S), to what the log of the mean density over points is."""
    logs = rdp_audit.expected_log_probs(residuals(100, points, 1.0), *gamma_of(1.0))
    mean_density = logs.exp().mean(1).log().mean().item()
    shift = rdp_audit.over_points(logs) - mean_density
    assert shift == pytest.approx(math.log(points / 100), abs=1e-9)


def test_with_equal_densities_the_shift_is_the_whole_difference():
    logs = torch.full((100, 957), -2.8)
    honest = (logs.logsumexp(0) - math.log(100)).mean().item()
    assert rdp_audit.over_points(logs) - honest == pytest.approx(math.log(957 / 100), abs=1e-5)


def test_a_simulated_regression_gains_the_log_of_points_per_draw():
    """Unit scale: only the index is wrong. The rest is Jensen's gap between points, ½ - ½ log 2."""
    r = residuals(100, 1000, 0.5)
    gained = rdp_audit.as_published(r, *gamma_of(0.5), 1.0) - rdp_audit.honest(
        r, *gamma_of(0.5), 1.0
    )
    gap = 0.5 - 0.5 * math.log(2)
    assert gained == pytest.approx(math.log(1000 / 100) + gap, abs=0.05)


def test_expected_log_density():
    a, b, r = 7.3, 2.1, 0.8
    law = stats.gamma(a, scale=1 / b)
    oracle = integrate.quad(lambda t: law.pdf(t) * stats.norm.logpdf(r, scale=t**-0.5), 0, 60)[0]
    got = rdp_audit.expected_log_probs(torch.tensor([[r]], dtype=torch.float64), a, b)
    assert got.item() == pytest.approx(oracle, abs=1e-8)


@pytest.mark.parametrize("table", [POWER, KIN8NM, PROTEIN], ids=["power", "kin8nm", "protein"])
def test_ordinary_errors_give_the_published_values(table):
    """And the honest score of the same residuals is what other methods have."""
    published, points, scale, error = table
    r = residuals(100, points, error / scale)
    shown = rdp_audit.as_published(r, *gamma_of(error / scale), scale)
    honest = rdp_audit.honest(r, *gamma_of(error / scale), scale)
    assert shown == pytest.approx(published, abs=0.1)
    assert honest == pytest.approx(stats.norm(0, error).entropy() * -1, abs=0.1)
    assert shown > honest + 1


def test_published_values_lie_between_those_of_a_quick_and_a_long_fit():
    """By stored results, whose errors nobody chose; on Boston the quick fit is the closer one."""
    between = []
    for table, columns in uci_published.COLUMNS.items():
        ends = []
        for variant in ("mean-field-quick-audited", "mean-field-audited"):
            stored = json.loads((RESULTS / table / variant / "0.json").read_text())
            ends.append(stored["metrics"]["as_published"])
        if min(ends) - 0.005 <= columns["RDP"][0] <= max(ends) + 0.005:  # published to two digits
            between.append(table)
    assert sorted({*uci_published.COLUMNS} - {*between}) == ["boston"]


def test_the_published_estimator_changes_with_the_unit_in_the_wrong_way():
    """Targets in thousandths: a log-density gains log 1000, and this one loses nothing at all."""
    r, unit = residuals(100, 500, 0.3), 1e-3
    law = gamma_of(0.3)
    honest = [rdp_audit.honest(r, *law, scale) for scale in (1.0, unit)]
    assert honest[1] - honest[0] == pytest.approx(math.log(1000))
    shown = [rdp_audit.as_published(r, *law, scale) for scale in (1.0, unit)]
    assert 0 < shown[1] - shown[0] < 0.5
