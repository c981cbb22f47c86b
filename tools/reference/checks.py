"""How the comparisons report, and how they measure a difference."""

import numpy as np


class Failure(Exception):
    """A check that could not be made or did not hold; its text goes behind FAIL."""


class Report:
    def __init__(self):
        self.failed = self.passed = self.skipped = 0

    def line(self, word, name, text):
        print(f"{word:4}  {name}: {text}", flush=True)

    def check(self, name, function, *arguments):
        """Runs function, which returns the text for an ok line or raises Failure."""
        try:
            text = function(*arguments)
        except Failure as failure:
            self.failed += 1
            self.line("FAIL", name, failure)
        else:
            self.passed += 1
            self.line("ok", name, text)

    def skip(self, name, why):
        self.skipped += 1
        self.line("skip", name, why)


def hold(difference, limit, what=""):
    if not difference <= limit:  # a NaN fails too
        raise Failure(f"{difference:.2e} > {limit:.0e} {what}".rstrip())
    return f"{difference:.2e} <= {limit:.0e} {what}".rstrip()


def compare_logits(found, wanted, limit):
    """Every step's largest difference, relative to that step's largest |logit|."""
    if found.shape != wanted.shape:
        raise Failure(f"shape {found.shape} instead of {wanted.shape}")
    steps = np.abs(found - wanted).max(axis=1) / np.abs(wanted).max(axis=1)
    worst = int(np.argmax(steps))  # the first NaN, if there is one
    return hold(steps[worst], limit, f"in {len(steps)} steps (worst: {worst})")


def compare_absolute(found, wanted, limit):
    if found.shape != wanted.shape:
        raise Failure(f"shape {found.shape} instead of {wanted.shape}")
    return hold(np.abs(found - wanted).max(), limit, "absolute")
