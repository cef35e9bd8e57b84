"""Before fit, everything that needs it says so."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from kasuri.sklearn import BayesianRegressor


@pytest.mark.parametrize("method", ["predict", "predict_interval", "sample_y", "export"])
def test_methods_say_that_fit_comes_first(method):
    with pytest.raises(NotFittedError):
        getattr(BayesianRegressor(), method)(np.zeros((2, 3)))
