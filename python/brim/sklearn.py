# SPDX-License-Identifier: Apache-2.0
"""A scikit-learn estimator: works with Pipeline, GridSearchCV, cross_val_score, clone and pickle."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .classifier import Classifier
from .errors import UsageError
from .results import imported
from .training import Training, _is_missing, _list, train

if TYPE_CHECKING:  # scikit-learn has no type stubs
    class _Base:
        def __getstate__(self) -> dict[str, Any]: ...
        def __setstate__(self, state: dict[str, Any]) -> None: ...
        def __sklearn_tags__(self) -> Any: ...

    class NotFittedError(ValueError): ...
else:
    imported("sklearn", "scikit-learn")
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import NotFittedError

    class _Base(ClassifierMixin, BaseEstimator):
        pass


class NotFitted(UsageError, NotFittedError):
    """predict() before fit()."""


class BrimClassifier(_Base):
    """Fine-tunes `model` in `fit` and labels texts in `predict`. X has one text per row: a list, array, Series or column,
    or a table or array with one column. Without `output_dir` the model is deleted with the estimator and included in its
    pickle.

    `class_weight`: None, "balanced", or a dict of weights by class. `random_state`: an int or RandomState, instead of `seed`.
    `settings`: other settings of brim.train.
    """

    def __init__(self, model: str | os.PathLike[str] = "default", *, num_train_epochs: float = 3,
                 learning_rate: float = 5e-5, train_batch_size: int = 32, max_length: int | None = None, seed: int = 42,
                 device: str = "auto", threads: int | None = None, memory_limit: str = "auto",
                 output_dir: str | None = None, verbose: bool = False, settings: dict[str, Any] | None = None,
                 class_weight: dict[Any, float] | str | None = None, random_state: Any = None) -> None:
        self.model = model
        self.num_train_epochs = num_train_epochs
        self.learning_rate = learning_rate
        self.train_batch_size = train_batch_size
        self.max_length = max_length
        self.seed = seed
        self.device = device
        self.threads = threads
        self.memory_limit = memory_limit
        self.output_dir = output_dir
        self.verbose = verbose
        self.settings = settings
        self.class_weight = class_weight
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BrimClassifier:
        """`sample_weight`: one number per text. Rows are repeated by whole numbers, else drawn in proportion."""
        if y is None:
            raise UsageError("y is None", "pass one label per text")
        texts, labels = _texts(X), _list(y)
        missing = next((row for row, label in enumerate(labels) if _is_missing(label)), None)
        if missing is not None:
            raise UsageError(f"y[{missing}] is {labels[missing]!r}", "drop rows without a label")
        given = np.asarray(labels)
        if given.ndim != 1 or len(given) != len(texts):
            raise UsageError(f"X has {len(texts):,} texts, y has shape {given.shape}", "pass one label per text")
        if len(texts) == 0:
            raise UsageError("X has no texts", "pass at least one")
        classes: npt.NDArray[Any] = np.unique(given)
        if len(classes) < 2:
            raise UsageError(f"y has only one class, {classes[0]!r}", "pass at least two classes")
        names = [str(one) for one in classes.tolist()]
        if len(set(names)) != len(names):
            raise UsageError(f"classes of y are equal as strings: {', '.join(names)}", "use one type for all")
        seed = self.seed if self.random_state is None else _seed_of(self.random_state)
        row_weights = _row_weights(self.class_weight, sample_weight, given, classes)
        rows = np.arange(len(texts)) if row_weights is None else _weighted_rows(row_weights, seed)
        ids = np.searchsorted(classes, given)[rows]
        if len(np.unique(ids)) != len(classes):
            raise UsageError("the weights leave out a class", "give each class a row with a positive weight")
        weights = {} if self.class_weight != "balanced" else {"class_weights": "balanced"}
        folder = self.output_dir
        if folder is None:
            folder = tempfile.mkdtemp(prefix="brim-")
            self._finalizer = weakref.finalize(self, shutil.rmtree, folder, True)
        options: dict[str, Any] = {
            "num_train_epochs": self.num_train_epochs, "learning_rate": self.learning_rate,
            "train_batch_size": self.train_batch_size, "max_length": self.max_length, "seed": seed, **weights,
            "device": self.device, "threads": self.threads, "memory_limit": self.memory_limit,
            "ignore_mismatched_head": True, "save_strategy": "no", "eval_strategy": "no",
            "load_best_model_at_end": False, "overwrite_output_dir": True, **(self.settings or {})}
        self.training_: Training = train(self.model, ([texts[i] for i in rows], [names[i] for i in ids]),
                                         output_dir=folder, progress=self.verbose, **options)
        self.classes_ = classes
        self.n_features_in_ = 1
        self._opened: Classifier | None = None
        self._order(names)
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The label of each text, as in y."""
        proba = self.predict_proba(X)
        return np.asarray(self.classes_[proba.argmax(axis=1)])

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities, [texts, classes_]; rows sum to 1."""
        if not hasattr(self, "classes_"):
            raise NotFitted("this BrimClassifier is not fitted", "call fit first")
        texts = _texts(X)
        scores = self._classifier().predict(texts).scores.astype(np.float64)[:, self._columns]
        return np.asarray(scores / scores.sum(axis=1, keepdims=True)) if len(texts) else scores

    def predict_log_proba(self, X: Any) -> npt.NDArray[np.float64]:
        return np.log(self.predict_proba(X))

    def _classifier(self) -> Classifier:
        if self._opened is None:
            self._opened = self.training_.classifier(device=self.device, threads=self.threads,
                                                     memory_limit=self.memory_limit)
        return self._opened

    def _order(self, names: list[str]) -> None:
        """Maps classes_ to the model's order of labels."""
        labels = self._classifier().labels
        self._columns = [labels.index(name) for name in names]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_finalizer", None)
        if "training_" in state:
            state["_opened"] = None
            if self.output_dir is None:
                root = pathlib.Path(self.training_.output_dir)
                state["_files"] = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            folder = tempfile.mkdtemp(prefix="brim-")
            self._finalizer = weakref.finalize(self, shutil.rmtree, folder, True)
            for name, data in files.items():
                (pathlib.Path(folder) / name).write_bytes(data)
            self.training_ = Training(folder, self.training_.figures)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        return tags


def _seed_of(random_state: Any) -> int:
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        return int(random_state)
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    raise UsageError(f"random_state={random_state!r} is not an int or a RandomState", "use an int")


def _weighted_rows(weights: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.int64]:
    """Rows repeated by their weights if those are whole numbers, else as many rows drawn in proportion."""
    count = len(weights)
    if (weights == np.floor(weights)).all() and weights.sum() <= 20 * count:
        return np.repeat(np.arange(count), weights.astype(np.int64))
    shares = np.cumsum(weights) / weights.sum()
    at = (np.arange(count) + np.random.default_rng(seed).random()) / count
    return np.minimum(np.searchsorted(shares, at, side="right"), count - 1)


def _row_weights(class_weight: Any, sample_weight: Any, given: npt.NDArray[Any],
                 classes: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    """The product of the weights of a row and of its class; None if all are 1."""
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise UsageError(f'class_weight="{class_weight}" is unknown', 'use "balanced" or a dict')
        class_weight = None  # the trainer weights the loss
    if class_weight is not None and (not isinstance(class_weight, dict) or any(key not in classes.tolist() for key in class_weight)):
        raise UsageError(f"class_weight={class_weight!r} is not a dict by class", f'use "balanced" or a dict of {classes.tolist()}')
    if class_weight is None and sample_weight is None:
        return None
    weights = np.ones(len(given)) if sample_weight is None else np.asarray(_list(sample_weight), dtype=np.float64)
    if weights.shape != (len(given),):
        raise UsageError(f"sample_weight has shape {weights.shape}, X has {len(given):,} texts", "pass one weight per text")
    if class_weight is not None:
        weights = weights * np.array([class_weight.get(one, 1.0) for one in given.tolist()], np.float64)
    if not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() == 0:
        raise UsageError("the weights contain negative or infinite numbers, or only zeros", "use numbers of 0 or more")
    return weights


def _texts(X: Any) -> list[str]:
    """One text per row."""
    if isinstance(X, str):
        raise UsageError("X is one str", "put it into a list: [text]")
    if getattr(X, "ndim", 1) == 2:
        if X.shape[1] != 1:
            raise UsageError(f"X has {X.shape[1]} columns", "pass the column of texts")
        X = X.iloc[:, 0] if hasattr(X, "iloc") else np.asarray(X)[:, 0]
    texts = _list(X)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"X[{row}] is {text!r}, not a str", "pass str")
    return texts
