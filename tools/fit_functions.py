#!/usr/bin/env python3
"""Computes the constants of src/kernels/ref/math.hpp.

    python3 -m venv venv && venv/bin/pip install mpmath
    venv/bin/python tools/fit_functions.py                               # prints the constants
    venv/bin/python tools/fit_functions.py --check src/kernels/ref/math.hpp   # exit 1 if the header has others

Each polynomial is a weighted least-squares fit at Chebyshev nodes, which is within a small factor of the minimax one
(Trefethen, Approximation Theory and Approximation Practice, 2013, ch. 16), with 100 digits. The weight turns the error of
the polynomial into the relative error of the function that it serves. Coefficients are rounded to the type one by one,
lowest degree first, and the higher ones are fitted anew after each, so that they make up for the rounding.
"""
import argparse
import struct
import sys

from mpmath import mp, mpf, matrix, lu_solve

mp.dps = 100

LN2_HALF = mp.log(2) / 2


def round_to(bits, x):
    """x rounded to nearest even to a significand of `bits` bits."""
    if x == 0:
        return mpf(0)
    exponent = int(mp.floor(mp.log(abs(x), 2))) - bits + 1
    return mp.nint(mp.ldexp(x, -exponent)) * mp.ldexp(mpf(1), exponent)


def least_squares(function, weight, powers, low, high):
    """Coefficients for `powers` of x that minimise the weighted squared error at Chebyshev nodes of [low, high]."""
    nodes = 6 * len(powers) + 8
    xs = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * nodes)) for i in range(nodes)]
    system, right = matrix(nodes, len(powers)), matrix(nodes, 1)
    for i, x in enumerate(xs):
        w = weight(x)
        right[i] = w * function(x)
        for j, power in enumerate(powers):
            system[i, j] = w * x**power
    solution = lu_solve(system, right)  # more rows than columns: by the normal equations
    return [solution[j] for j in range(len(powers))]


def fit(function, weight, degree, low, high, bits):
    """Coefficients 0 .. degree rounded to `bits`, and the weighted error that is left."""
    done = []

    def rest(x):
        return function(x) - sum(c * x**p for p, c in enumerate(done))

    for power in range(degree + 1):
        coefficients = least_squares(rest, weight, range(power, degree + 1), low, high)
        done.append(round_to(bits, coefficients[0]))
    grid = [low + (high - low) * i / 2000 for i in range(2001)]
    return done, max(abs(weight(x) * rest(x)) for x in grid)


def expm1_tail(r):
    """(exp(r) - 1 - r) / r^2, by its series near 0."""
    if abs(r) < mpf("1e-10"):
        return mpf(1) / 2 + r / 6 + r * r / 24
    return (mp.expm1(r) - r) / (r * r)


def erf_slope(s):
    """erf(x) / x - 1 as a function of s = x^2."""
    if s < mpf("1e-20"):
        return 2 / mp.sqrt(mp.pi) * (1 - s / 3) - 1
    x = mp.sqrt(s)
    return mp.erf(x) / x - 1


def tanh_tail(s):
    """(tanh(x) / x - 1) / x^2 as a function of s = x^2."""
    if s < mpf("1e-40"):
        return -mpf(1) / 3
    x = mp.sqrt(s)
    return (mp.tanh(x) / x - 1) / s


def log_erfc_slope(x):
    """log(erfc(x)) / x."""
    return mp.log(mp.erfc(x)) / x


class Format:
    def __init__(self, name, bits, exponent_bits, degrees, erf_one):
        self.name, self.bits, self.degrees, self.erf_one = name, bits, degrees, mpf(erf_one)
        self.reduce_bits = bits - exponent_bits - 1  # n times the high part of ln 2 is exact for every |n| of the type

    def literal(self, x):
        """C++ hexadecimal literal of a value that the type holds."""
        value = float(x)
        if self.name == "float":
            assert struct.unpack("f", struct.pack("f", value))[0] == value
        mantissa, exponent = value.hex().split("p")
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}p{exponent}" + ("f" if self.name == "float" else "")


TANH_SPLIT = mpf("0.5625")
ERF_SPLIT = mpf("0.9375")

# erf_one: from here on erf rounds to 1.
FORMATS = [
    Format("float", 24, 8, {"Expm1": 4, "Tanh": 4, "Erf": 6, "LogErfc": 6}, "4"),
    Format("double", 53, 11, {"Expm1": 9, "Tanh": 9, "Erf": 11, "LogErfc": 17}, "6"),
]


def polynomials(fmt):
    """(name, coefficients, relative error left in the function) of one type."""
    widest = LN2_HALF * (1 + mpf("1e-4"))  # rounding of x log2(e) may pass the half way point
    degrees = fmt.degrees

    def tail_weight(x):
        return x * mp.erfc(x) / mp.erf(x)

    jobs = [
        ("Expm1", expm1_tail, lambda r: r * r * mp.exp(-r) + mpf("1e-3"), -widest, widest),
        ("Tanh", tanh_tail, lambda s: s / (1 + s * tanh_tail(s)) + mpf("1e-3"), mpf(0), TANH_SPLIT**2),
        ("Erf", erf_slope, lambda s: 1 / (1 + erf_slope(s)), mpf(0), ERF_SPLIT**2),
        ("LogErfc", log_erfc_slope, tail_weight, ERF_SPLIT, fmt.erf_one),
    ]
    for name, function, weight, low, high in jobs:
        coefficients, error = fit(function, weight, degrees[name], low, high, fmt.bits)
        yield name, coefficients, error


def lines_of(fmt):
    """The lines of the header for one type, and comments that start with '#'."""
    ln2 = mp.log(2)
    high = round_to(fmt.reduce_bits, ln2)
    low = round_to(fmt.bits, ln2 - high)
    yield f"static constexpr {fmt.name} kLog2E = {fmt.literal(round_to(fmt.bits, 1 / ln2))};"
    yield f"static constexpr {fmt.name} kLn2High = {fmt.literal(high)};"
    yield f"static constexpr {fmt.name} kLn2Low = {fmt.literal(low)};"
    yield f"static constexpr {fmt.name} kSqrt2OverPi = {fmt.literal(round_to(fmt.bits, mp.sqrt(2 / mp.pi)))};"
    yield f"static constexpr {fmt.name} kSqrtHalf = {fmt.literal(round_to(fmt.bits, mp.sqrt(mpf(1) / 2)))};"
    for name, coefficients, error in polynomials(fmt):
        ulp = mp.ldexp(mpf(1), -fmt.bits)
        yield f"# {name}: relative error {mp.nstr(error, 3)}, {mp.nstr(error / ulp, 3)} x 2^-{fmt.bits}"
        yield f"static constexpr {fmt.name} k{name}[] = {{" + ", ".join(map(fmt.literal, coefficients)) + "};"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", metavar="FILE", help="compare with the constants in FILE")
    arguments = parser.parse_args()
    text = None
    if arguments.check:
        with open(arguments.check, encoding="utf-8") as file:
            text = "".join(file.read().split())
    missing = 0
    for fmt in FORMATS:
        print(f"# {fmt.name}")
        for line in lines_of(fmt):
            print(line, flush=True)
            if text is not None and not line.startswith("#") and "".join(line.split()) not in text:
                print(f"  ^ not in {arguments.check}")
                missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
