"""`Posterior.part`: the marginal of some rows and columns, in the same family."""

import pytest
import torch

import kasuri
from tests.posteriors.matrix_normal.oracles import covariance

FAMILIES = {
    "mean-field": kasuri.MeanField(max_scale=2.0),
    "k-tied": kasuri.KTied(rank=2),
    "matrix normal": kasuri.MatrixNormal(),
    "low rank": kasuri.MatrixNormal(rows=1, columns="diagonal", noise=0.5),
    "bounded": kasuri.MatrixNormal(max_scale=0.3, scale=0.1),
    "plus diagonal": kasuri.MatrixNormalDiagonal(),
    "scaled": kasuri.ScaledMatrixNormal(),
    "full": kasuri.FullNormal(),
    "rows": kasuri.Radial(grouping="row"),
    "columns": kasuri.Radial(grouping="column"),
}


def randomised(family: kasuri.Family, shape: tuple[int, ...]) -> kasuri.Posterior:
    torch.manual_seed(3)
    q = family(torch.randn(*shape).double())
    for parameter in q.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return q


def part_of(q: kasuri.Posterior, rows: list[int], columns: list[int]) -> kasuri.Posterior:
    """The same rows and columns of every block."""
    index = [torch.tensor(side).expand(*q.shape[:-2], -1) for side in (rows, columns)]
    return q.part(*index)


@pytest.mark.parametrize("shape", [(6, 7), (2, 6, 7)], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_part_has_the_marginal_law(name: str, shape: tuple[int, ...]) -> None:
    q = randomised(FAMILIES[name], shape)
    rows = list(range(6)) if name == "columns" else [0, 2, 3, 5]
    columns = list(range(7)) if name == "rows" else [1, 2, 6]
    new = part_of(q, rows, columns)
    assert type(new) is type(q)
    torch.testing.assert_close(new.mean, q.mean[..., rows, :][..., columns])
    torch.testing.assert_close(new.variance, q.variance[..., rows, :][..., columns])
    if "Radial" in type(q).__name__ or len(shape) > 2:
        return
    # correlations: those of draws of the whole against those of draws of the part
    torch.manual_seed(0)
    whole, draws = (
        torch.vmap(lambda _, q=q: q.rsample(), randomness="different")(torch.zeros(1000)).detach()
        for q in (q, new)
    )
    whole = whole[..., rows, :][..., columns]
    one, other = (torch.corrcoef(d.flatten(1).T) for d in (whole, draws))
    assert (one - other).abs().max() < 0.22, "five standard errors of a correlation"


def test_a_part_of_a_matrix_normal_has_its_covariance() -> None:
    q = randomised(kasuri.MatrixNormal(), (4, 5))
    rows, columns = [0, 3], [1, 2, 4]
    new = part_of(q, rows, columns)
    left, right = (side.factor() @ side.factor().mT for side in (q.rows, q.columns))
    expected = torch.kron(left[rows][:, rows], right[columns][:, columns])
    mean = q.mean[rows][:, columns].flatten()
    dense = torch.distributions.MultivariateNormal(mean, expected)
    torch.testing.assert_close(covariance(new), expected)
    torch.testing.assert_close(new.entropy(), dense.entropy())
