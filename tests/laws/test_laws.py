"""The exported laws, over every family."""

import pytest
import torch

from tests.laws.families import FAMILIES
from weft import testing
from weft.testing import posterior_laws


@pytest.mark.parametrize("law", testing.LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_law(family, law):
    torch.manual_seed(0)
    law(family)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_entropy(family):
    torch.manual_seed(0)
    posterior_laws.entropy_is_that_of_the_dense_normal(family)
