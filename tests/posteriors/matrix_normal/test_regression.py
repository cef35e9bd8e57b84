"""Linear regression with several outputs, where the posterior is exactly a matrix normal.

p(W) = N(0, I/α), Y = X Wᵀ + noise of precision β: the posterior has mean Mᵀ = β V XᵀY, independent
rows and column covariance V = (β XᵀX + α I)⁻¹, and the evidence is a normal density.
"""

import math

import pytest
import torch
from torch import nn

import kasuri
from kasuri.numerics.triangular import fold

EXAMPLES, INS, OUTS = 40, 6, 3
NOISE, PRIOR = 0.3, 0.7


class Problem:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.x = draw(EXAMPLES, INS) @ draw(INS, INS)  # correlated inputs
        self.y = self.x @ (PRIOR * draw(INS, OUTS)) + NOISE * draw(EXAMPLES, OUTS)
        self.precision = (
            self.x.T @ self.x / NOISE**2 + torch.eye(INS, dtype=torch.float64) / PRIOR**2
        )
        self.v = torch.linalg.inv(self.precision)
        self.mean = (self.v @ self.x.T @ self.y / NOISE**2).T
        cov = NOISE**2 * torch.eye(EXAMPLES, dtype=torch.float64) + PRIOR**2 * self.x @ self.x.T
        zero = self.x.new_zeros(EXAMPLES)
        evidence = torch.distributions.MultivariateNormal(zero, cov).log_prob(self.y.T)
        self.log_evidence = evidence.sum()

    def network(
        self, family: kasuri.Family, estimator: str = "local"
    ) -> tuple[nn.Module, kasuri.ELBO]:
        net = nn.Linear(INS, OUTS, bias=False).double()
        bnn = kasuri.bayesianize(net, family, estimator=estimator)
        return bnn, kasuri.ELBO(
            bnn, kasuri.Gaussian(NOISE), kasuri.Normal(PRIOR), num_data=EXAMPLES
        )

    def elbo(self, q: kasuri.Posterior) -> torch.Tensor:
        """In closed form: E‖Y - XWᵀ‖² from mean and covariance of every row."""
        rows = torch.diag_embed(q.variance)
        if isinstance(q, kasuri.posteriors.Elementwise):
            noise = torch.einsum("bi,oij,bj->", self.x, rows, self.x)
        else:
            c = q.columns.factor()
            noise = (self.x @ c).square().sum() * q.rows.variances().sum()
        square = (self.y - self.x @ q.mean.T).square().sum() + noise
        constant = self.y.numel() * (math.log(NOISE) + 0.5 * math.log(2 * math.pi))
        return -0.5 * square / NOISE**2 - constant - q.kl(kasuri.Normal(PRIOR))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem()


def put(q, mean, v) -> None:
    """The exact posterior, as parameters."""
    factor = torch.linalg.cholesky(v)
    with torch.no_grad():
        q.loc.copy_(mean)
        q.rows.log_scale.zero_()
        q.rows.lower.zero_()
        q.columns.log_scale.copy_(factor.diagonal().log())
        q.columns.lower.copy_(fold(factor / factor.diagonal()))


def test_the_exact_posterior_is_a_matrix_normal_whose_elbo_is_the_evidence(problem):
    q = kasuri.MatrixNormal()(torch.zeros(OUTS, INS, dtype=torch.float64))
    put(q, problem.mean, problem.v)
    torch.testing.assert_close(problem.elbo(q), problem.log_evidence, rtol=1e-12, atol=1e-9)


def test_the_objective_is_the_evidence_there(problem):
    """-N · loss is an unbiased estimate; at the exact posterior it has only little noise."""
    for estimator in ("local", "shared"):
        bnn, objective = problem.network(kasuri.MatrixNormal(), estimator)
        put(bnn.posteriors.weight, problem.mean, problem.v)
        with torch.no_grad():
            values = torch.stack(
                [-EXAMPLES * objective(problem.x, problem.y).loss for _ in range(300)]
            )
        error = values.std() / len(values) ** 0.5
        assert (values.mean() - problem.log_evidence).abs() < 5 * error
        assert error < 0.25


def test_training_reaches_the_evidence(problem):
    """By gradients of the closed-form ELBO, from the usual start, to 1e-3 nats."""
    torch.manual_seed(0)
    q = kasuri.MatrixNormal()(torch.zeros(OUTS, INS, dtype=torch.float64))
    optimiser = torch.optim.LBFGS(
        q.parameters(), max_iter=2000, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = -problem.elbo(q)
        loss.backward()
        return loss

    optimiser.step(closure)
    gap = problem.log_evidence - problem.elbo(q)
    assert -1e-9 < gap < 1e-3
    v = q.columns.factor() @ q.columns.factor().T * q.rows.variances()[0]
    torch.testing.assert_close(v, problem.v, rtol=0.02, atol=0.02 * problem.v.abs().max().item())


def mean_field_gap(problem) -> float:
    """out/2 [Σ log (V⁻¹)_ii - log det V⁻¹]."""
    p = problem.precision
    return (0.5 * OUTS * (p.diagonal().log().sum() - torch.logdet(p))).item()


def test_the_best_mean_field_loses_exactly_the_stated_nats(problem):
    """Its means are the exact ones and its variances 1 / (V⁻¹)_ii."""
    q = kasuri.MeanField()(problem.mean)
    best = (-0.5 * problem.precision.diagonal().log()).expand(OUTS, INS).clone()
    with torch.no_grad():
        q.log_scale.copy_(best)
    gap = problem.log_evidence - problem.elbo(q)
    assert gap.item() == pytest.approx(mean_field_gap(problem), rel=1e-10)
    assert gap > 1
    for gradient in torch.autograd.grad(problem.elbo(q), list(q.parameters())):
        assert gradient.abs().max() < 1e-8, "no mean-field posterior nearby is better"
