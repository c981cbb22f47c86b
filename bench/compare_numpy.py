#!/usr/bin/env python3
"""A cached step of the character GPT in float64: Stet and a NumPy implementation in turns, in one run.

    bench/compare_numpy.py --peer ../shared/tools/numpy_gpt.py [--threads 2] [--tries 20] [--rounds 5] [--json]

The same shapes, random weights on each side (they do not change the time). Each context is filled, then its last step is
timed many times over; the sides take turns. Needs numpy and threadpoolctl, and stet_step (bench/README.md).
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import sys
import time

from stepper import DEFAULT_BUILD, Stepper, machine

# Settings of the machine's user that would choose OpenBLAS's kernels for it, before NumPy reads them.
for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(name, None)

import numpy as np  # noqa: E402
import threadpoolctl  # noqa: E402

CONTEXTS = (128, 2048, 16384)
TOKEN_BYTES = 2 * 4 * 128 * 8  # keys and values of one token: layers x width x f64


def load_peer(path):
    spec = importlib.util.spec_from_file_location("numpy_gpt", path)
    if spec is None or not path.exists():
        raise SystemExit(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peer_step(peer, context):
    """A function that runs NumPy's step at the last position of a full cache."""
    model = peer.model(context + 8)
    ids = np.random.default_rng(1).integers(0, peer.V, context)
    cache = np.zeros((2, peer.L, peer.H, context + 8, peer.C // peer.H))
    for a in range(0, context - 1, 256):
        b = min(a + 256, context - 1)
        peer.forward(model, ids[a:b], a, cache)
    return lambda: peer.forward(model, ids[-1:], context - 1, cache)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=pathlib.Path, required=True, help="numpy_gpt.py")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tries", type=int, default=20, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", type=pathlib.Path, default=DEFAULT_BUILD, help="where stet_step was built")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if min(args.threads, args.tries, args.rounds) < 1:
        parser.error("--threads, --tries and --rounds must be at least 1")

    peer = load_peer(args.peer)
    rows = []
    with threadpoolctl.threadpool_limits(args.threads):
        blas = [f"{p['internal_api']} {p['version']} {p.get('architecture', '')}, {p['num_threads']} threads"
                for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
        stet = Stepper(args.build / "bench" / "stet_step", "random:char,ctx=16384", "f64", args.threads)
        for context in CONTEXTS:
            theirs_step = peer_step(peer, context)
            ours, theirs, reads = [], [], []
            for turn in range(args.rounds + 1):
                reads.append(stet.ask(f"probe {max(context * TOKEN_BYTES, 1 << 20)}")["read_gb_s"])
                time.sleep(0.03)
                a = [stet.ms(f"tg 1 depth {context - 1}") for _ in range(args.tries)]
                time.sleep(0.03)
                b = []
                for _ in range(args.tries):
                    start = time.perf_counter()
                    theirs_step()
                    b.append((time.perf_counter() - start) * 1e3)
                if turn:  # the first turn warms both up
                    ours += a
                    theirs += b
            read = statistics.median(reads[1:])
            best, median = min(ours), statistics.median(ours)
            step_bytes = context * TOKEN_BYTES + stet.hello["weight_bytes"] - 16384 * 128 * 8
            rows.append({"context": context, "stet_best_ms": best, "stet_median_ms": median, "numpy_best_ms": min(theirs),
                         "numpy_median_ms": statistics.median(theirs), "ratio_best": min(theirs) / best,
                         "ratio_median": statistics.median(theirs) / median, "read_gb_s": read,
                         "stet_median_gb_s": step_bytes / median / 1e6, "of_read": step_bytes / median / 1e6 / read})
        about = stet.hello
        stet.close()
    info = {"machine": machine(), "threads": args.threads, "python": sys.version.split()[0], "numpy": np.__version__,
            "blas": blas, "stet": about["version"], "kernels": about["kernels"]}
    if args.json:
        print(json.dumps({**info, "rows": rows}))
        return
    print(f"{info['machine']}; {args.threads} threads\nStet {info['stet']}, {info['kernels']}; NumPy {info['numpy']}, "
          f"{'; '.join(blas)}\n")
    print("| context | Stet best ms | median | NumPy best ms | median | ratio of best | of medians | Stet GB/s | read GB/s | of it |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        print(f"| {r['context']} | {r['stet_best_ms']:.3f} | {r['stet_median_ms']:.3f} | {r['numpy_best_ms']:.2f} "
              f"| {r['numpy_median_ms']:.2f} | {r['ratio_best']:.1f} | {r['ratio_median']:.1f} | {r['stet_median_gb_s']:.1f} "
              f"| {r['read_gb_s']:.1f} | {r['of_read'] * 100:.0f} % |")


if __name__ == "__main__":
    main()
