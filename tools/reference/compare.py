#!/usr/bin/env python3
"""Holds the program `stet` to references that are not its own: a NumPy forward in float64, PyTorch's golden logits, and a
trained model with recorded PyTorch intermediates.

    tools/reference/compare.py --stet build/release/stet

One line a check: ok, FAIL or skip, the largest difference and its limit. A difference of logits is relative to the largest
|logit| of the same step. Exit status: 0 if nothing failed, 1 if something did, 77 without NumPy (CTest's word for skipped).
`--plant` spoils one number of every result that the program gives: every check of the program must then fail.
"""

import argparse
import glob
import itertools
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np

    from checks import Failure, Report, compare_absolute, compare_logits
    from gpt2_numpy import Gpt2
    from nano_sort import RECORDED_LIMIT, compare_recorded, numpy_intermediates, read_recorded
    from random_folder import write_random_folder
except ModuleNotFoundError as error:
    if error.name != "numpy":
        raise
    print(f"compare: skipped, {error} (Debian: apt-get install python3-numpy)", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
LIMITS = {"f64": 2e-14, "f32": 1e-5}
GOLDEN_LIMIT = 1e-13  # PyTorch's float64 against NumPy's
TIMEOUT = 600  # seconds for one run of the program

# Paths through the program that must all agree with the reference.
PATHS = {
    "at once": [],
    "token by token": ["--chunk", "1"],
    "in chunks of 7": ["--chunk", "7"],
    "without a cache": ["--cache", "none"],
}

class Program:
    """The built program, run once for each result."""

    def __init__(self, path, plant):
        self.path, self.plant = path, plant

    def run(self, *arguments):
        command = [self.path, *arguments]
        try:
            result = subprocess.run(command, capture_output=True, timeout=TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failure(str(error)) from None
        if result.returncode != 0:
            said = result.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
            raise Failure(f"stet {arguments[0]} exited with {result.returncode} and said: {said[-1]}")
        return result.stdout.decode()

    def logits(self, folder, ids, dtype, flags, limit):
        """Logits as float64. `limit` is what they will be held to: a planted error is ten times that."""
        with tempfile.TemporaryDirectory() as scratch:
            out = os.path.join(scratch, "logits.npy")
            text = ",".join(map(str, ids))
            self.run("logits", "-m", folder, "--ids", text, "--dtype", dtype, *flags, "-o", out)
            try:
                logits = np.load(out)
            except (OSError, ValueError) as error:
                raise Failure(f"stet logits wrote no NumPy array: {error}") from None
        if logits.dtype != {"f64": np.float64, "f32": np.float32}[dtype]:
            raise Failure(f"asked for {dtype}, the file has {logits.dtype}")
        if self.plant:
            logits[-1, 0] += 10 * limit * np.abs(logits[-1]).max()
        return logits.astype(np.float64)

    def continuations(self, folder, prompts, count, flags):
        """Greedy new ids of every prompt, all prompts handed over together."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.writelines(json.dumps({"ids": prompt, "n": count}) + "\n" for prompt in prompts)
            file.flush()
            text = self.run("generate", "-m", folder, "--prompts", file.name, "--json", *flags)
        try:
            found = [json.loads(line)["ids"] for line in text.splitlines()]
        except (ValueError, KeyError) as error:
            raise Failure(f"stet generate wrote something else than one JSON object with ids a line: {error!r}") from None
        if self.plant:
            found[1][0] += 1
        return found


def check_program(program, folder, ids, wanted, dtype, flags):
    return compare_logits(program.logits(folder, ids, dtype, flags, LIMITS[dtype]), wanted, LIMITS[dtype])


def check_all_paths(report, program, name, folder, ids):
    wanted = Gpt2(folder).forward(ids)
    for dtype, (path, flags) in itertools.product(LIMITS, PATHS.items()):
        report.check(f"{name}, {dtype}, {path}", check_program, program, folder, ids, wanted, dtype, flags)


def check_random(report, program, name, **config):
    with tempfile.TemporaryDirectory() as folder:
        write_random_folder(folder, 0, **config)
        ids = np.random.default_rng(1).integers(0, config["vocab_size"], config["n_positions"]).tolist()
        check_all_paths(report, program, name, folder, ids)


def check_bundled(report, program, folder):
    """A line of the model's own kind of text as ids (id = byte), filled up with random bytes to the limit."""
    text = list(b"\nROMEO:\nBut, soft! what light through yonder window breaks?\nIt is the east, and Juliet is the sun.\n")
    ids = (text + np.random.default_rng(0).integers(0, 256, 128).tolist())[:128]
    check_all_paths(report, program, "bundled model", folder, ids)


def check_golden(report, program, root):
    folders = [os.path.dirname(path) for path in sorted(glob.glob(os.path.join(root, "*", "golden.json")))]
    if not folders:
        report.skip("golden logits", f"none under {root}")
    for folder in folders:
        with open(os.path.join(folder, "golden.json"), encoding="utf-8") as file:
            golden = json.load(file)
        name, ids, wanted = f"golden {os.path.basename(folder)}", golden["ids"], np.array(golden["logits"])
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            is_gpt2 = json.load(file).get("model_type") == "gpt2"
        if is_gpt2:
            report.check(f"{name}, NumPy", compare_logits, Gpt2(folder).forward(ids), wanted, GOLDEN_LIMIT)
        if program:
            for dtype in LIMITS:
                report.check(f"{name}, {dtype}", check_program, program, folder, ids, wanted, dtype, [])


def check_sorting(program, folder, dtype):
    """Six digits in, the same six sorted out. The last one is read from the logits of a context that is then full: a program
    may count a token that it never feeds back as one too many."""
    prompts = [list(digits) for digits in itertools.product(range(3), repeat=6)]
    found = program.continuations(folder, prompts, 5, ["--dtype", dtype, "--cache", "contiguous"])
    if len(found) != len(prompts):
        raise Failure(f"{len(found)} results for {len(prompts)} prompts")
    for prompt, ids in zip(prompts, found):
        if ids == sorted(prompt)[:5]:
            logits = program.logits(folder, prompt + ids, dtype, ["--chunk", "1"], LIMITS[dtype])
            ids.append(int(np.argmax(logits[-1])))
        if ids != sorted(prompt):
            raise Failure(f"{prompt} became {ids}")
    return f"all {len(prompts)} inputs sorted"


def check_against_pytorch(program, folder, ids, wanted):
    found = program.logits(folder, ids, "f64", ["--chunk", "1"], RECORDED_LIMIT)
    return compare_absolute(found, wanted, RECORDED_LIMIT)


def check_nano_sort(report, program, data):
    folder = os.path.join(data, "gpt-nano-sort")
    if not os.path.isdir(folder):
        report.skip("gpt-nano-sort", f"{folder} is absent")
        return
    model = Gpt2(folder)
    recorded = read_recorded(os.path.join(folder, "gpt-nano-sort-t0-partials.json"))
    sequences = recorded["idx"].astype(int)
    computed = numpy_intermediates(model, sequences)
    report.check("gpt-nano-sort, recorded by PyTorch, NumPy", compare_recorded, recorded, computed)
    with open(os.path.join(folder, "reference_logits.json"), encoding="utf-8") as file:
        reference = json.load(file)
    wanted = np.array(reference["logits_torch_f32"])
    found = np.stack([model.forward(ids) for ids in reference["idx"]])
    report.check("gpt-nano-sort, PyTorch's logits, NumPy", compare_absolute, found, wanted, RECORDED_LIMIT)
    if not program:
        return
    for row, ids in enumerate(reference["idx"]):
        name = f"gpt-nano-sort, sequence {row}"
        for dtype in LIMITS:
            report.check(f"{name}, {dtype}", check_program, program, folder, ids, found[row], dtype, ["--chunk", "1"])
        report.check(f"{name}, PyTorch's logits, f64", check_against_pytorch, program, folder, ids, wanted[row])
    for dtype in LIMITS:
        report.check(f"gpt-nano-sort, greedy through the cache, {dtype}", check_sorting, program, folder, dtype)


def main():
    parser = argparse.ArgumentParser(description="Compares the program's logits with independent references.")
    parser.add_argument("--stet", default=os.path.join(ROOT, "build", "release", "stet"), help="the program")
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "shakespeare-char"), help="the bundled model")
    parser.add_argument("--golden", default=os.path.join(ROOT, "tests", "golden"))
    parser.add_argument("--data", default=os.path.join(ROOT, "..", "shared", "data"), help="folder with gpt-nano-sort")
    parser.add_argument("--references-only", action="store_true", help="compare the references with each other")
    parser.add_argument("--plant", action="store_true", help="spoil the program's results, to see the checks fail")
    options = parser.parse_args()

    program = None
    if not options.references_only:
        if not os.access(options.stet, os.X_OK):
            sys.exit(f"compare: {options.stet}: no such program (build it, or --references-only)")
        program = Program(options.stet, options.plant)

    report = Report()
    check_golden(report, program, options.golden)
    check_nano_sort(report, program, options.data)
    if program:
        check_bundled(report, program, options.model)
        sizes = {"n_embd": 768, "n_head": 12, "n_layer": 2, "n_positions": 128, "vocab_size": 5003}
        check_random(report, program, "two layers of GPT-2's shape", **sizes)
        # Long enough for attention to meet several of its blocks of 512 positions.
        sizes = {"n_embd": 24, "n_head": 3, "n_layer": 2, "n_positions": 1100, "vocab_size": 50}
        check_random(report, program, "context 1100", **sizes)
    print(f"{report.passed} ok, {report.failed} failed, {report.skipped} skipped")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
