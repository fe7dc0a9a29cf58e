# SPDX-License-Identifier: Apache-2.0
"""Text classifiers at the limit of the hardware: brim.Classifier, brim.Encoder, brim.Tagger, brim.plan, brim.train,
brim.forecast. brim.bulk, brim.ray and brim.spark are imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from . import bulk, ray, spark

__all__ = [
    "BadData", "BadModel", "BatchScorer", "Busy", "Cancelled", "CannotWrite", "Classifier", "DeviceLost", "Diverged",
    "DoesNotFit", "Encoder", "Error", "Interrupted", "Plan", "Result", "Tagger", "TimedOut", "Training",
    "UsageError", "__version__", "bulk", "forecast", "plan", "ray", "spark", "train",
]

if not TYPE_CHECKING:  # type checkers import the modules above and report unknown names
    def __getattr__(name):
        if name in ("bulk", "ray", "spark"):
            return importlib.import_module(f"brim.{name}")
        raise AttributeError(f"module 'brim' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), "bulk", "ray", "spark"})
