# SPDX-License-Identifier: Apache-2.0
"""Text classifiers at the limit of the hardware: brim.Classifier, brim.Encoder, brim.Tagger, brim.plan, brim.train,
brim.forecast."""

from __future__ import annotations

from . import forecast
from ._brim import __version__
from .batch_scorer import BatchScorer
from .classifier import Classifier
from .encoder import Encoder
from .errors import (BadData, BadModel, Busy, Cancelled, CannotWrite, DeviceLost, Diverged, DoesNotFit, Error,
                     Interrupted, TimedOut, UsageError)
from .plans import Plan, plan
from .results import Result
from .tagger import Tagger
from .training import Training, train

__all__ = [
    "BadData", "BadModel", "BatchScorer", "Busy", "Cancelled", "CannotWrite", "Classifier", "DeviceLost", "Diverged",
    "DoesNotFit", "Encoder", "Error", "Interrupted", "Plan", "Result", "Tagger", "TimedOut", "Training",
    "UsageError", "__version__", "forecast", "plan", "train",
]
