#!/usr/bin/env python3
"""A step by context without a cache and with one: Stet's `race --by context` and a NumPy implementation in turns, in one run.

    bench/compare_contexts.py --peer ../shared/tools/numpy_gpt.py [--threads 2] [--rounds 3] [--stet PROGRAM] [--json]

The character GPT in float64, random weights on each side. Without a cache up to 2,048 tokens, with one up to 16,384; of all rounds
the fastest step counts, as in the write-up. Needs numpy and threadpoolctl.
"""

import argparse
import json
import os
import pathlib
import subprocess
import time

for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(name, None)

import numpy as np  # noqa: E402
import threadpoolctl  # noqa: E402

from compare_numpy import load_peer, peer_step  # noqa: E402
from stepper import machine  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTEXTS, MOST_UNCACHED, CACHED_TRIES = (16, 128, 512, 768, 2048, 16384), 2048, 20
WAYS = ("at_once_ms", "by_rows_ms", "cached_ms")


def stet_steps(program, context, threads):
    command = [program, "race", "--by", "context", "--context", str(context), "--threads", str(threads), "--tries", "2",
               "--trained", "", "--json"]
    row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if not row["equal"]:
        raise SystemExit(f"context {context}: not the same bits")
    return row["contexts"][0] | {"bend": row["bend_layers"], "bend_with_head": row["bend_with_head"]}


def fastest(step, tries):
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        step()
        best = min(best, (time.perf_counter() - start) * 1e3)
    return best


def numpy_steps(peer, context):
    steps = {"cached_ms": fastest(peer_step(peer, context), CACHED_TRIES)}
    if context <= MOST_UNCACHED:
        model = peer.model(context + 8)
        ids = np.random.default_rng(1).integers(0, peer.V, context)
        steps["at_once_ms"] = fastest(lambda: peer.forward(model, ids), 2)
        steps["by_rows_ms"] = fastest(lambda: peer.forward(model, ids, rows=128), 2)
    return steps


def merge(best, new):
    for way in WAYS:
        if new.get(way) is not None:
            best[way] = min(best.get(way, float("inf")), new[way])
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=pathlib.Path, required=True, help="numpy_gpt.py")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stet", default=str(ROOT / "build" / "release" / "stet"))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if min(args.threads, args.rounds) < 1:
        parser.error("--threads and --rounds must be at least 1")
    peer = load_peer(args.peer)
    rows = []
    with threadpoolctl.threadpool_limits(args.threads):
        for context in CONTEXTS:
            ours, theirs = {}, {}
            for _ in range(args.rounds):
                merge(ours, stet_steps(args.stet, context, args.threads))
                merge(theirs, numpy_steps(peer, context))
            rows.append({"context": context, "stet": ours, "numpy": theirs})
    if args.json:
        print(json.dumps({"machine": machine(), "threads": args.threads, "numpy": np.__version__, "rows": rows}))
        return
    print(f"{machine()}; {args.threads} threads; NumPy {np.__version__}; ms, the fastest\n")
    print("| context | at once: Stet | NumPy | 128 rows: Stet | NumPy | cached: Stet | NumPy | ratios |\n|---|---|---|---|---|---|---|---|")
    show = lambda value: "" if value is None else f"{value:.3f}" if value < 1 else f"{value:.1f}"
    for row in rows:
        cells, ratios = [], []
        for way in WAYS:
            a, b = row["stet"].get(way), row["numpy"].get(way)
            cells += [show(a), show(b)]
            ratios += [] if a is None or b is None else [f"{b / a:.1f}"]
        print(f"| {row['context']} | " + " | ".join(cells) + f" | {', '.join(ratios)} |")


if __name__ == "__main__":
    main()
