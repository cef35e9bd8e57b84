"""Natural-gradient training: closed forms of small problems, and what an optimiser must get along with."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import kasuri
from kasuri import Natural

N, NOISE = 40, 0.5


class Regression:
    """Linear regression with known noise: its posterior is known, and the loss has a closed form."""

    def __init__(self, family: kasuri.Family, temperature: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(N, 3, generator=generator, dtype=torch.float64)
        self.y = self.x @ torch.randn(3, 1, generator=generator, dtype=torch.float64)
        self.y += NOISE * torch.randn(N, 1, generator=generator, dtype=torch.float64)
        bnn = kasuri.bayesianize(nn.Linear(3, 1, bias=False).double(), family)
        self.elbo = kasuri.ELBO(
            bnn, kasuri.Gaussian(NOISE), kasuri.Normal(1.0), N, temperature=temperature
        )
        self.q = dict(kasuri.named_posteriors(bnn))["weight"]
        self.temperature = temperature
        data = self.x.mT @ self.x / NOISE**2 / temperature
        self.precision = data + torch.eye(3, dtype=torch.float64)
        right = self.x.mT @ self.y / NOISE**2 / temperature
        self.mean = torch.linalg.solve(self.precision, right).mT

    def covariance(self) -> Tensor:
        factor = self.q.pull(torch.eye(3, dtype=torch.float64).unsqueeze(1))
        return factor @ factor.mT

    def loss(self) -> Tensor:
        """Per example, without noise."""
        away = (self.y - self.x @ self.q.mean.mT).square().sum()
        spread = (self.x @ self.covariance() * self.x).sum()
        nll = (away + spread) / (2 * NOISE**2)
        return (nll + self.temperature * self.elbo.kl()) / N

    def train(self, optimiser: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            self.loss().backward()
            optimiser.step()


FULL = {
    "full normal": kasuri.FullNormal(scale=0.1),
    "matrix normal": kasuri.MatrixNormal(scale=0.1),
}
INDEPENDENT = {
    "mean-field": kasuri.MeanField(scale=0.1),
    "mean-field, bounded": kasuri.MeanField(scale=0.1, max_scale=2.0),
    "1-tied": kasuri.KTied(1, scale=0.1),
    "2-tied": kasuri.KTied(2, scale=0.1),
    "diagonal sides": kasuri.MatrixNormal(scale=0.1, rows="diagonal", columns="diagonal"),
}


@pytest.mark.parametrize("temperature", [1.0, 0.01])
@pytest.mark.parametrize("name", [*FULL, *INDEPENDENT])
def test_it_finds_the_posterior_of_a_conjugate_problem(name: str, temperature: float) -> None:
    problem = Regression((FULL | INDEPENDENT)[name], temperature)
    optimiser = Natural(problem.elbo, 0.1, rate=0.3)
    falling = LambdaLR(optimiser, lambda step: 0.97**step)
    for _ in range(300):
        problem.train(optimiser, 1)
        falling.step()
    width = problem.precision.diagonal().rsqrt()
    assert ((problem.q.mean.detach() - problem.mean) / width).abs().max() < 0.05
    if name in FULL:
        torch.testing.assert_close(
            problem.covariance().detach() @ problem.precision,
            torch.eye(3, dtype=torch.float64),
            rtol=0.02,
            atol=0.02,
        )
    else:
        torch.testing.assert_close(
            problem.q.variance.sqrt().detach(), width.unsqueeze(0), rtol=0.02, atol=0
        )


def first_move(lr: float, mean_rate: float, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Standard deviations, the gradient of the mean, and how far one step moves the mean."""
    problem = Regression(kasuri.MeanField(scale=scale, noise=0.5))
    problem.loss().backward()
    start, gradient = problem.q.loc.detach().clone(), problem.q.loc.grad.clone()
    sigma = problem.q.scale.detach()
    Natural(problem.elbo, lr, mean_rate=mean_rate).step()
    return sigma, gradient, problem.q.loc.detach() - start


def test_without_natural_steps_a_mean_takes_adams() -> None:
    """Squares of the gradients of a single row are of rank one, so that nothing is lost."""
    _, gradient, move = first_move(0.01, 0.0, 0.3)
    torch.testing.assert_close(move, -0.01 * gradient.sign())


def test_a_natural_step_of_a_mean_is_its_variance_times_the_gradient() -> None:
    sigma, gradient, move = first_move(1e-12, 0.3, 1e-4)  # so narrow that nothing is loud
    natural = N * sigma.square() * gradient
    torch.testing.assert_close(move, -0.3 * natural, rtol=1e-3, atol=1e-9)


def test_natural_steps_that_are_mostly_noise_are_short() -> None:
    """A step of z standard deviations at rate 1 becomes z / (1 + z²/25) / √(1 + mean z² / 225)."""
    for scale in (0.3, 3.0):
        sigma, gradient, move = first_move(1e-12, 1.0, scale)
        z = N * sigma * gradient
        expected = -sigma * z / (1 + z.square() / 25) / (1 + z.square().mean() / 225).sqrt()
        torch.testing.assert_close(move, expected, rtol=1e-3, atol=1e-8)
        assert (move / sigma).abs().max() <= 2.5


def test_no_step_of_a_mean_is_longer_than_the_rate_where_rows_and_columns_mislead() -> None:
    """The only gradient of its row and its column is far larger than their product says."""
    bnn = kasuri.bayesianize(nn.Linear(20, 30, bias=False), kasuri.KTied(2))
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.HeNormal(), num_data=10)
    optimiser = Natural(elbo, 0.01, mean_rate=0.0)
    loc = bnn.posteriors.weight.loc
    before = loc.detach().clone()
    loc.grad = torch.zeros_like(loc)
    loc.grad[:29, :19], loc.grad[29, 19] = 1.0, 1e-3
    optimiser.step()
    assert (loc - before).abs().max() <= 0.01 * (1 + 1e-5)


def test_squares_of_gradients_are_kept_by_rows_and_columns() -> None:
    """One number a weight and one a row and a column, where Adam holds two numbers a weight."""
    bnn = kasuri.bayesianize(nn.Linear(20, 30), kasuri.KTied(2))
    elbo = kasuri.ELBO(bnn, kasuri.Gaussian(1.0), kasuri.HeNormal(), num_data=10)
    optimiser = Natural(elbo)
    elbo(torch.randn(4, 20), torch.randn(4, 30)).loss.backward()
    optimiser.step()
    state = optimiser.state[bnn.posteriors.weight.loc]
    held = [state["gradient"], *state["squares"]]
    assert sum(tensor.numel() for tensor in held) == 30 * 20 + 30 + 20


def test_widths_settle_at_a_rate_of_their_own() -> None:
    """Near the optimum one step leaves 1 - rate of the way, whatever data and temperature."""
    for temperature in (1.0, 1e-3):
        problem = Regression(kasuri.MeanField(), temperature)
        best = problem.precision.diagonal().rsqrt().log().unsqueeze(0)
        with torch.no_grad():
            problem.q.log_scale.copy_(best + 0.01)
        problem.train(Natural(problem.elbo, rate=0.1), 1)
        left = (problem.q.log_scale.detach() - best) / 0.01
        torch.testing.assert_close(left, torch.full_like(left, 0.9), rtol=2e-3, atol=0)


def classification(family: kasuri.Family, **options: object) -> kasuri.ELBO:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    bnn = kasuri.bayesianize(net, family, estimator="auto")
    return kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.HeNormal(), num_data=100, **options)


X, Y = torch.randn(16, 4, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3


def step(elbo: kasuri.ELBO, optimiser: torch.optim.Optimizer, number: int) -> None:
    torch.manual_seed(number)
    optimiser.zero_grad()
    elbo(X, Y, step=number).loss.backward()
    optimiser.step()


def values(elbo: kasuri.ELBO) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in elbo.named_parameters()}


def test_what_has_no_natural_step_is_trained_by_adam() -> None:
    elbos = [classification(kasuri.Point()) for _ in range(2)]
    makers = [lambda e: Natural(e, 0.01), lambda e: torch.optim.Adam(e.parameters(), 0.01)]
    for elbo, make in zip(elbos, makers, strict=True):
        optimiser = make(elbo)
        for number in range(5):
            step(elbo, optimiser, number)
    torch.testing.assert_close(values(elbos[0]), values(elbos[1]), rtol=1e-6, atol=1e-7)


def test_a_stored_state_goes_on_to_the_same_bits() -> None:
    rising = kasuri.schedules.LinearPerBatch(rate=0.1, every=1)
    elbo = classification(kasuri.KTied(2), kl_weight=rising)
    optimiser = Natural(elbo)
    for number in range(3):
        step(elbo, optimiser, number)
    again = copy.deepcopy(elbo)
    other = Natural(again)
    other.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for number in range(3, 6):
        step(elbo, optimiser, number)
        step(again, other, number)
    assert all(torch.equal(value, values(again)[name]) for name, value in values(elbo).items())


def test_a_gradient_scaler_changes_nothing() -> None:
    results = []
    for scale in (1.0, 1024.0):
        elbo = classification(kasuri.MatrixNormal())
        optimiser, scaler = Natural(elbo), torch.amp.GradScaler("cpu", init_scale=scale)
        for number in range(3):
            torch.manual_seed(number)
            optimiser.zero_grad()
            scaler.scale(elbo(X, Y).loss).backward()
            scaler.step(optimiser)
            scaler.update()
        results.append(values(elbo))
    torch.testing.assert_close(*results)


def test_schedules_and_closures_work() -> None:
    elbo = classification(kasuri.KTied(1))
    optimiser = Natural(elbo, 0.01, rate=0.1)
    schedule = LambdaLR(optimiser, lambda step: 0.5**step)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = elbo(X, Y).loss
        loss.backward()
        return loss

    assert optimiser.step(closure).isfinite()
    schedule.step()
    assert {group["lr"] for group in optimiser.param_groups} >= {0.005, 0.05}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.layer = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(x))[0][:, -1])


NETS = {
    "convolution": (
        nn.Sequential(
            nn.Conv2d(1, 4, 3, groups=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 5)
        ),
        torch.randn(8, 1, 5, 5),
    ),
    "recurrent, tied": (Recurrent(), torch.randint(5, (8, 6))),
    "attention": (
        nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(12, 5)
        ),
        torch.randn(8, 3, 4),
    ),
}
FAMILIES = [
    kasuri.KTied(2),
    kasuri.MatrixNormal(),
    kasuri.MatrixNormal(rows=1, columns=1),
    kasuri.MatrixNormalDiagonal(),
    kasuri.ScaledMatrixNormal(),
    kasuri.MeanField(max_scale=0.5),
]


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("name", NETS)
def test_layers_of_every_kind_are_trained(name: str, family: kasuri.Family) -> None:
    net, x = NETS[name]
    bnn = kasuri.bayesianize(net, family, blocks=True)
    elbo = kasuri.ELBO(bnn, kasuri.Categorical(), kasuri.ARD(), num_data=50, temperature=0.1)
    optimiser = Natural(elbo)
    before = values(elbo)
    for _ in range(3):
        optimiser.zero_grad()
        elbo(x, torch.arange(8) % 5).loss.backward()
        optimiser.step()
    for key, value in values(elbo).items():
        assert value.isfinite().all(), key
        assert not torch.equal(value, before[key]), key


def test_frozen_parameters_stay_and_a_temperature_of_zero_is_finite() -> None:
    elbo = classification(kasuri.KTied(2), temperature=0.0)
    frozen = elbo.bnn[0].posteriors.weight.log_rows.requires_grad_(False)
    before = frozen.clone()
    optimiser = Natural(elbo)
    for number in range(3):
        step(elbo, optimiser, number)
    assert torch.equal(frozen, before)
    assert all(value.isfinite().all() for value in values(elbo).values())


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"rate": -1.0}, {"mean_rate": -0.1}], ids=repr)
def test_rates_must_be_positive(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Natural(classification(kasuri.MeanField()), **options)


def test_fit_takes_it() -> None:
    elbo = classification(kasuri.KTied(2))
    fitted = kasuri.fit(elbo, (X, Y), epochs=2, optimiser=Natural, seed=0)
    assert fitted.history[-1]["loss"] < 10
    assert fitted.objective is elbo
