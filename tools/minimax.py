#!/usr/bin/env python3
"""Prints coefficients as those in kernels/formulas/elementary.h and error_function.h, that of the
highest power first: the polynomials whose largest weighted error in an interval is least
(E. Remez's exchange algorithm, 1934), rounded to the type that they are computed in. Needs mpmath
and NumPy.

    python3 tools/minimax.py [NAME...]
"""

import sys

import mpmath
import numpy
from mpmath import mp, mpf, sqrt

mp.prec = 200


def minimax(f, low, high, degree, weight, grid):
    """The coefficients, lowest power first, and the largest weighted error on the grid."""
    low, high, count = mpf(low), mpf(high), degree + 2

    def chebyshev(i, n):
        return (low + high) / 2 - (high - low) / 2 * mpmath.cos(mpmath.pi * (i + mpf(1) / 2) / n)

    points = [chebyshev(i, grid) for i in range(grid)]
    values, weights = [f(x) for x in points], [weight(x) for x in points]
    chosen = [min(range(grid), key=lambda j: abs(points[j] - chebyshev(i, count)))
              for i in range(count)]
    for _ in range(12):
        # The polynomial whose errors in the chosen points are alike and alternate.
        system, right = mpmath.matrix(count, count), mpmath.matrix(count, 1)
        for i, j in enumerate(chosen):
            for k in range(degree + 1):
                system[i, k] = points[j] ** k
            system[i, degree + 1] = (-1) ** i / weights[j]
            right[i] = values[j]
        solution = mpmath.lu_solve(system, right)
        coefficients = [solution[k] for k in range(degree + 1)]
        errors = [w * (v - mpmath.polyval(coefficients[::-1], x))
                  for x, v, w in zip(points, values, weights)]
        # The largest error of each run of one sign is the next choice.
        extremes, j = [], 0
        while j < grid:
            best = k = j
            while k < grid and (errors[k] >= 0) == (errors[j] >= 0):
                best = k if abs(errors[k]) > abs(errors[best]) else best
                k += 1
            extremes.append(best)
            j = k
        while len(extremes) > count:
            extremes.pop(0 if abs(errors[extremes[0]]) < abs(errors[extremes[-1]]) else -1)
        if len(extremes) < count or extremes == chosen:
            break
        chosen = extremes
    return coefficients, max(abs(e) for e in errors)


def exp_series(r):
    return (mpmath.exp(r) - 1 - r) / r**2 if abs(r) > mpf(10) ** -30 else mpf(1) / 2


def log_series(z):
    return (2 * mpmath.atanh(sqrt(z)) / sqrt(z) - 2) / z


def tanh_series(z):
    return (mpmath.tanh(sqrt(z)) / sqrt(z) - 1) / z


def sine_series(z):
    return (mpmath.sin(sqrt(z)) / sqrt(z) - 1) / z


def cosine_series(z):
    return (mpmath.cos(sqrt(z)) - 1 + z / 2) / z**2


def erf_slope(w):  # w = z / 8 - 1
    return mpmath.erf(sqrt(8 + 8 * w)) / sqrt(8 + 8 * w)


def tail(w):  # w = a / (a + 3) - 1/2
    v = w + mpf(1) / 2
    a = 3 * v / (1 - v)
    return a * mpmath.erfc(a / sqrt(2)) * mpmath.exp(a * a / 2) / 2


def part(a):
    return a / (a + 3) - mpf(1) / 2


def above_half(z):
    return mpmath.erf(sqrt(z / 2)) / 2 / sqrt(z)


def slope_above_half(z):
    return above_half(z) + mpmath.npdf(sqrt(z))


tiny = mpf(10) ** -12
# name: function, interval, degree, weight, points of the grid, type
polynomials = {
    "exp_series f32": (exp_series, -0.3467, 0.3467, 4, lambda r: r * r, 600, "f32"),
    "exp_series f64": (exp_series, -0.3467, 0.3467, 9, lambda r: r * r, 800, "f64"),
    "log_series f32": (log_series, tiny, 0.02945, 3, lambda z: z / 2, 400, "f32"),
    "log_series f64": (log_series, tiny, 0.02945, 6, lambda z: z / 2, 600, "f64"),
    "tanh f32": (tanh_series, tiny, 0.391, 5,
                 lambda z: z * sqrt(z) / mpmath.tanh(sqrt(z)), 400, "f32"),
    "sine": (sine_series, tiny, 0.6169, 3, lambda z: z, 400, "f64"),
    "cosine": (cosine_series, tiny, 0.6169, 3, lambda z: z * z, 400, "f64"),
    # The tail has the smallest steps: its errors weigh more.
    "erf": (erf_slope, -1 + tiny, 1, 19,
            lambda w: (1 + 6 * ((1 + w) / 2) ** 2) / erf_slope(w), 500, "f64"),
    "NormalTail": (tail, part(mpf("0.93")), part(mpf("14.6")), 8,
                   lambda w: 1 / tail(w), 500, "f32"),
    "gelu": (above_half, tiny, mpf("0.9026"), 4, lambda z: sqrt(z) / mpf("0.2"), 300, "f32"),
    "gelu_slope": (slope_above_half, tiny, mpf("0.9026"), 4, sqrt, 300, "f32"),
}

if __name__ == "__main__":
    for name, (f, low, high, degree, weight, grid, dtype) in polynomials.items():
        if len(sys.argv) > 1 and name.split()[0] not in sys.argv[1:]:
            continue
        coefficients, error = minimax(f, low, high, degree, weight, grid)
        print(f"{name}: error 2^{float(mpmath.log(error, 2)):.1f}")
        for c in reversed(coefficients):
            print("   ", str(numpy.float32(float(c))) + "f" if dtype == "f32" else repr(float(c)))
        if name == "NormalTail":  # its constant is kept in two parts
            print("   ", float(coefficients[0]))
