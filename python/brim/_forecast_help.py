# SPDX-License-Identifier: Apache-2.0
"""Descriptions of the settings of brim.forecast, which its docstrings share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_F = TypeVar("_F", bound=Callable[..., object])

MODELS = """
Settings of the models:
    preset: "paper" (18 models, 30 blocks of width 512), "fast" (default; 8 models, 6 blocks of width 128), "interpretable"
    lookbacks: input lengths in horizons, one model each: "2..7" or [2, 3, 5]
    input_size: input length in points, instead of lookbacks
    losses: one model each: "smape", "mape", "mase", "mae", "mse", "huber", "quantile"
    repeats: models per lookback and loss (default: 1)
    level: prediction intervals in percent: [80, 95]
    season: points per season (default: by frequency: 24 hourly, 12 monthly, 4 quarterly, else 1)
    stack_types: "exogenous", "generic", "trend", "seasonality"; one per stack
    n_blocks: blocks of each stack; mlp_units: widths of the layers of a block: [512, 512, 512, 512]
    shared_weights: share weights between the blocks of a stack
    n_harmonics: of seasonality stacks (default: 1); n_basis: polynomial degree of trend stacks (default: 2)
    scaler_type: how to scale windows: "last" (default; by last value and spread), "none"
    calendar: add covariates of the date: hour, weekday, day of the month and of the year

Settings of the training:
    max_steps: updates; epochs: passes over all windows, instead of max_steps
    batch_size: windows per update
    learning_rate: peak learning rate (default: 0.001); num_lr_decays: number of times it is halved (default: 3)
    early_stop_patience_steps: evaluations without improvement before stopping (default: 0, never)
    val_check_steps: steps between evaluations (default: 100)
    history_size: use training windows that end within this many horizons of the end of a series
    sampling: what to sample uniformly: "series" (default), "windows"
    loss_mean: points in the mean of the loss: "all" (default; missing ones count as 0), "valid"
    random_seed: of weights and windows (default: 1)
    save_steps: steps between checkpoints (default: about every 30 seconds)
"""

READING = """
Settings of all functions:
    layout: "auto" (default), "long" (a row per point), "wide" (a row per series), "columns" (a column per series), "jsonl"
    id_column, time_column, target_column: names (default: unique_id, ds, y or similar)
    freq: "auto" (default; the most frequent interval), "index" (row numbers), or a frequency of pandas: "h", "D", "15min"
    gaps: missing points: "mask" (default), "error", "fill" (with the previous value)
    delimiter: column separator of files (default: detected)
    future_columns (futr_exog_list): covariates that are known for the points to forecast
    past_columns (hist_exog_list): covariates that are known up to the last value of a series
    static_columns (stat_exog_list): covariates with one value per series
    categorical: covariates whose values are categories, not numbers
    device: "auto" (default), "cpu", "cuda", "cuda:1"
    precision: "auto" (default), "fp32", "tf32", "bf16", "fp16"
    memory_limit: memory the process may use on the device: "6GiB", "90%"; leave_free: memory to leave free instead: "8GiB"
    threads: CPU threads (default: all cores)
"""

TRAIN = """
Settings:
    model: "nbeats" (default), or "auto" to combine it with baselines by held-out error
    from: model to continue the training of, with its settings: **{"from": "folder"}
    held_out: horizons at the end of the series to hold out for the widths of intervals (default: 2; 0: none)
"""

PREDICT = """
Settings:
    level: prediction intervals in percent: [80, 95]
    season: points per season (default: by frequency)
    alias: name of the column of forecasts
    held_out: horizons at the end of the series to hold out for the widths of intervals (default: 2; 0: none)
    components: also the contributions of the level and of each stack
    plot: page to write with plots of the forecasts; plot_series: ids of the series to plot (default: the first eight)
"""

ROLL = """
Settings:
    step: points between cutoffs (default: 1)
    refit: folds between trainings (default: 1)
    window: train only on this many points before the cutoff (default: all)
    gap: points before the cutoff to exclude from training (default: 0)
    warm: start refits from: "none" (default; new weights), "anchor" (a base model), "chain" (the previous fold)
    warm_steps: updates of warm-started folds (default: a tenth of the full number)
    anchor_every: folds between trainings of the base model (default: train it once)
    shrink: shrink forecasts towards the last value: "auto" (default), "none", or a factor
    baselines: fitted baselines to compare with: "theta", "ets"; "naive": only the naive ones
    keep_models: keep the models of all folds
    extend: continue after the last cutoff of an earlier run
    alias: name of the column of forecasts
    target_utilization: target utilisation in percent, shown in the report
"""

EVALUATE = """
Settings:
    alias: name of the column of forecasts
    season: points per season (default: by frequency)
    level: prediction intervals in percent: [80, 95]
    held_out: horizons at the end of the series to hold out for the widths of intervals (default: 2; 0: none)
    baselines: fitted baselines to compare with: "theta", "ets"; "naive": only the naive ones
"""


def described(*parts: str) -> Callable[[_F], _F]:
    """Appends descriptions to the docstring of a function."""
    def add(function: _F) -> _F:
        if function.__doc__ is not None:  # python -OO
            function.__doc__ = "\n".join([function.__doc__.rstrip() + "\n", *(part.strip("\n") + "\n" for part in parts)])
        return function
    return add
