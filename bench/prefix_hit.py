#!/usr/bin/env python3
"""How much sooner the first token comes when the prompt was seen: one engine, the same prompt again and again.

    bench/prefix_hit.py --stet build/release/stet [-m MODEL] [--tokens 512] [--dtype f32] [--kv f32]

Prints the milliseconds of the miss (with a fresh engine each time) and of the full hits, medians, and their ratio.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile


def prefill_ms(args, prompts):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "prompts.jsonl"
        ids = [(i * 7919) % args.vocab for i in range(args.tokens)]
        path.write_text((json.dumps({"ids": ids, "n": 1}) + "\n") * prompts)
        command = [args.stet, "generate", "-m", args.model, "--prompts", path, "--batch", "1", "--cache", "paged",
                   "--prefix-cache", str(1 << 30), "--chunk", str(args.tokens), "--dtype", args.dtype, "--kv", args.kv]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    told = [json.loads(line) for line in out.splitlines()]
    assert [t["cached_tokens"] for t in told] == [0] + [args.tokens - 1] * (prompts - 1), "not every repeat was a full hit"
    assert len({t["ids"][0] for t in told}) == 1, "a hit gave another token"
    return [1e3 * t["timings"]["prefill_seconds"] for t in told]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stet", required=True)
    parser.add_argument("-m", "--model", default="random:gpt2")
    parser.add_argument("--vocab", type=int, default=50000, help="ids are below this")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--kv", default="f32")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    misses, hits = [], []
    for _ in range(args.rounds):
        first, *again = prefill_ms(args, 6)
        misses.append(first)
        hits += again
    miss, hit = statistics.median(misses), statistics.median(hits)
    print(f"{args.model}, {args.tokens} tokens, weights {args.dtype}, cache {args.kv}: miss {miss:.1f} ms, "
          f"full hit {hit:.2f} ms, {miss / hit:.1f} x sooner")


if __name__ == "__main__":
    main()
