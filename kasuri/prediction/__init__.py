"""Predictions with uncertainty, and what they are worth."""

from kasuri.prediction.baselines import ensemble as ensemble
from kasuri.prediction.baselines import mc_dropout as mc_dropout
from kasuri.prediction.evaluate import Evaluation as Evaluation
from kasuri.prediction.evaluate import evaluate as evaluate
from kasuri.prediction.predict import predict as predict
