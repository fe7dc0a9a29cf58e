# SPDX-License-Identifier: Apache-2.0
"""Trains and runs text classifiers within a planned memory limit.

    clf = brim.Classifier()                         the default model; or a directory, a name, "vader"
    clf("great stuff")                              [{'label': 'positive', 'score': 0.99}]
    clf.predict(texts).to_pandas()                  many texts: lists, arrays, columns, tables
    clf.submit(text).result(), await clf.ascore(text)   single texts, batched together

Models
    Classifier, Tagger, ZeroShotClassifier          like transformers.pipeline; brim.pipeline opens them by task
    Encoder, CrossEncoder                           like sentence-transformers
    load_model, compare, gpu_stats                  models by name, compared on your rows; the GPUs
    BatchScorer                                     queues texts with the items they belong to
Training and planning
    train, plan, sklearn.BrimClassifier             fine-tuning, memory plans, an estimator
Series and large data
    forecast                                        N-BEATS and statistical baselines
    bulk, ray, spark                                many files, on one or many machines (imported on first use)

All errors are subclasses of brim.Error and have a `remedy`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import forecast
from ._brim import __version__
from .batch_scorer import BatchScorer
from .classifier import Classifier
from .comparison import Comparison, compare, gpu_stats, load_model
from .cross_encoder import CrossEncoder
from .encoder import Encoder
from .errors import (ArgumentError, BadData, BadModel, Busy, Cancelled, CannotWrite, DeviceLost, Diverged, DoesNotFit, Error,
                     Interrupted, TimedOut, UsageError)
from .pipelines import pipeline
from .plans import Plan, plan
from .results import Result
from .tagger import Tagger
from .training import Training, train
from .zero_shot import ZeroShotClassifier

if TYPE_CHECKING:
    from . import bulk, ray, spark

__all__ = [
    "ArgumentError", "BadData", "BadModel", "BatchScorer", "Busy", "Cancelled", "CannotWrite", "Classifier", "Comparison",
    "CrossEncoder", "DeviceLost", "Diverged", "DoesNotFit", "Encoder", "Error", "Interrupted", "Plan", "Result", "Tagger",
    "TimedOut", "Training", "UsageError", "ZeroShotClassifier", "__version__", "bulk", "compare", "forecast", "gpu_stats",
    "load_model", "pipeline", "plan", "ray", "spark", "train",
]

if not TYPE_CHECKING:  # type checkers import the modules above and report unknown names
    def __getattr__(name):
        if name in ("bulk", "ray", "spark"):
            return importlib.import_module(f"brim.{name}")
        raise AttributeError(f"module 'brim' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), "bulk", "ray", "spark"})
