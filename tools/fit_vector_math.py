#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Computes the polynomial coefficients of src/ops/cpu/vec.h: minimax fits of the relative error by Lawson's reweighted least
# squares in long double, rounded to fp32. Requires numpy and mpmath. Prints the coefficients, highest power first.
import mpmath as mp
import numpy as np

mp.mp.dps = 40


def fit(function, basis_function, weight_function, low, high, degree, steps=400, points=1200):
    """Coefficients c minimising max |(sum c_i basis^i - f) * w| on [low, high]."""
    nodes = np.array([0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (i + 0.5) / points) for i in range(points)], dtype=np.longdouble)
    values = np.array([np.longdouble(str(function(mp.mpf(str(x))))) for x in nodes])
    weights = np.array([np.longdouble(str(weight_function(mp.mpf(str(x))))) for x in nodes])
    basis = np.array([np.longdouble(str(basis_function(mp.mpf(str(x))))) for x in nodes])
    powers = np.stack([basis**i for i in range(degree + 1)], axis=1)
    lawson = np.ones(points, dtype=np.longdouble) / points
    best = None
    for _ in range(steps):
        scale = (np.sqrt(lawson) * weights).astype(np.float64)
        coefficients, *_ = np.linalg.lstsq(powers.astype(np.float64) * scale[:, None], values.astype(np.float64) * scale, rcond=None)
        error = np.abs((powers @ coefficients - values) * weights)
        if best is None or error.max() < best[0]:
            best = (error.max(), coefficients)
        lawson = lawson * error
        lawson /= lawson.sum()
    return best


def show(name, result):
    error, coefficients = result
    print(f"{name}: relative error {float(error):.2e}")
    for c in coefficients[::-1]:
        print(f"  {np.float32(c)!r}")


# 2^f = 1 + f q(f) on [-1/2, 1/2].
show("exp2", fit(lambda x: (mp.power(2, x) - 1) / x if x != 0 else mp.log(2), lambda x: x, lambda x: abs(x) / mp.power(2, x), -0.5, 0.5, 5))
# The same for results rounded to bf16: 2^f on [0, 1).
show("exp2 short", fit(lambda x: mp.power(2, x), lambda x: x, lambda x: 1 / mp.power(2, x), 0.0, 1.0, 3))
# e^r = 1 + r + r² q(r) on ±ln2/2.
show("exp", fit(lambda x: (mp.exp(x) - 1 - x) / x**2 if x != 0 else mp.mpf("0.5"), lambda x: x, lambda x: x**2 / mp.exp(x), -0.34658, 0.34658, 4))
# Upper tail of the normal distribution: 1 - Φ(t) = e^(-t²/2) R(t), R = u q(u) with u = 1 / (1 + t/3), t in [0, 14].
tail = lambda t: mp.erfc(t / mp.sqrt(2)) / 2 * mp.exp(t * t / 2)
u = lambda t: 1 / (1 + t / 3)
show("normal tail", fit(lambda t: tail(t) / u(t), u, lambda t: u(t) / tail(t), 0.0, 14.0, 9))
# tanh(x) = x + x³ q(x²) on [0, 0.625].
show("tanh", fit(lambda s: (mp.tanh(mp.sqrt(s)) - mp.sqrt(s)) / mp.sqrt(s)**3 if s > 1e-8 else -mp.mpf(1) / 3, lambda s: s,
                 lambda s: s * mp.sqrt(s) / mp.tanh(mp.sqrt(s)) if s > 0 else mp.mpf(0), 0.0, 0.390625, 4))
