#!/usr/bin/env python3
"""Stet and llama.cpp in turns, in one run, on the same weights.

    bench/compare_llama_cpp.py FOLDER [--threads 2] [--rounds 7] [--only f32,f16,int8,int4,bf16] [--json]

FOLDER is what ../shared/tools/make_gpt2.py writes: model.safetensors and model-{f32,f16,q8_0}.gguf of the same random
weights. model-q4_0.gguf is made here once, by llama.cpp's own quantiser. Needs llama-cpp-python, numpy, and stet_step
(bench/README.md). Both sides stay loaded and take turns A, B, A, B; llama.cpp is called through llama_decode, flash
attention on, n_batch = n_ubatch = 512, logits for the last token of each sequence: what llama-bench does. No sampling
is timed on either side. A rate is the median of its rounds, a ratio the median of the rounds' ratios.
"""

import argparse
import ctypes
import json
import pathlib
import statistics
import time

import numpy as np
from stepper import DEFAULT_BUILD, Stepper, machine

try:
    import llama_cpp
except ImportError as error:
    raise SystemExit(f"{error}: pip install llama-cpp-python (bench/README.md)") from None

PAIRS = {"f32": "f32", "f16": "f16", "int8": "q8_0", "int4": "q4_0", "bf16": None}  # Stet's type -> llama.cpp's file
BATCH = 16
DECODED = 24  # tokens of a try; of a try with many sequences a third
PROMPT = 512
F32_TOLERANCE = 1e-3  # of the largest logit: llama.cpp takes its tanh-GELU from a table of f16
quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)


class Llama:
    """A model of llama.cpp with a context for one sequence and one for sixteen."""

    def __init__(self, path, threads, context):
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"{path}: llama.cpp cannot load it")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.one = self._context(threads, context, 1)
        self.many = self._context(threads, BATCH * 64, BATCH)
        self.batch = llama_cpp.llama_batch_init(PROMPT, 0, 1)

    def _context(self, threads, tokens, seqs):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = tokens, seqs
        params.n_batch = params.n_ubatch = PROMPT
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.no_perf = True
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            raise SystemExit("llama.cpp cannot make a context")
        return context

    def decode(self, context, ids, seqs, positions, last_only):
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, positions[i], 1, seqs[i]
            batch.logits[i] = not last_only or i == len(ids) - 1
        if llama_cpp.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(context)

    def prompt(self, ids, at=0):
        self.decode(self.one, ids, [0] * len(ids), range(at, at + len(ids)), True)

    def forget(self, context, start=0):
        for seq in range(BATCH if context is self.many else 1):
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), seq, start, -1)

    def made_up(self, at, seq=0):
        return (at * 7919 + seq * 104729 + 13) % self.vocab

    def pp(self, n):
        self.forget(self.one)
        ids = [self.made_up(i) for i in range(n)]
        start = time.perf_counter()
        self.prompt(ids)
        return (time.perf_counter() - start) * 1e3

    def tg(self, n, depth):
        self.forget(self.one)
        for at in range(0, depth, PROMPT):
            self.prompt([self.made_up(i) for i in range(at, min(depth, at + PROMPT))], at)
        start = time.perf_counter()
        for i in range(depth, depth + n):
            self.prompt([self.made_up(i)], i)
        return (time.perf_counter() - start) * 1e3

    def together(self, n):
        self.forget(self.many)
        seqs = list(range(BATCH))
        start = time.perf_counter()
        for i in range(n):
            self.decode(self.many, [self.made_up(i, s) for s in seqs], seqs, [i] * BATCH, False)
        return (time.perf_counter() - start) * 1e3

    def logits(self, ids):
        self.forget(self.one)
        self.prompt(ids)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.one, -1), (self.vocab,)).astype(np.float64)

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.one)
        llama_cpp.llama_free(self.many)
        llama_cpp.llama_model_free(self.model)


def gguf(folder, name):
    """The file of this format; q4_0 is made from f32 when it is missing."""
    path = folder / f"model-{name}.gguf"
    if name == "q4_0" and not path.exists():
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
        source = str(folder / "model-f32.gguf").encode()
        if llama_cpp.llama_model_quantize(source, str(path).encode(), ctypes.byref(params)) != 0:
            raise SystemExit(f"{path}: llama.cpp cannot make it")
    if not path.exists():
        raise SystemExit(f"{path}: missing; ../shared/tools/make_gpt2.py makes it")
    return path


def tensor_types(path):
    """How many tensors of more than one dimension of a GGUF have each type: "48 Q4_0, 1 Q6_K"."""
    names = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 12: "Q4_K", 14: "Q6_K", 30: "BF16"}
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    with open(path, "rb") as file:
        def number(n):
            return int.from_bytes(file.read(n), "little")

        def skip(kind):
            if kind == 8:
                file.seek(number(8), 1)
            elif kind == 9:
                inner, count = number(4), number(8)
                for _ in range(count):
                    skip(inner)
            else:
                file.seek(sizes[kind], 1)

        file.seek(8)
        tensors, keys = number(8), number(8)
        for _ in range(keys):
            file.seek(number(8), 1)
            skip(number(4))
        counts = {}
        for _ in range(tensors):
            name = file.read(number(8)).decode()
            dims = [number(8) for _ in range(number(4))]
            kind = names.get(number(4), "other")
            file.seek(8, 1)
            if len(dims) > 1:
                counts.setdefault(kind, []).append(name)
    few = {kind: f" ({', '.join(found)})" if len(found) < 3 else "" for kind, found in counts.items()}
    return ", ".join(f"{len(found)} {kind}{few[kind]}" for kind, found in counts.items())


def check_same_model(stet, llama):
    """The largest difference of the logits behind a prompt, relative to the largest logit."""
    ids = [llama.made_up(i) for i in range(64)]
    ours = np.array(stet.ask("logits " + " ".join(map(str, ids)))["logits"], dtype=np.float64)
    theirs = llama.logits(ids)
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())


def bounds(config, hello, probe, dtype):
    """The least milliseconds of each test on this machine in this run: bytes over bandwidth or operations over peak."""
    width, layers, vocab = config["n_embd"], config["n_layer"], config["vocab_size"]
    linear = 12 * layers * width * width
    weights = hello["weight_bytes"] - config["n_positions"] * width * 4  # a step reads one row of the positions
    cache = 2 * layers * width * 4
    peak = probe["int8_gop_s" if dtype in ("int8", "int4") else "f32_gflop_s"] * 1e9
    read = probe["read_gb_s"] * 1e9

    def ms(rows, heads, depth):
        # A row sees `depth` positions before its step; rows of a prompt see each other, half of them on average.
        seen = depth + (rows / 2 if heads == 1 else 1)
        operations = 2 * rows * linear + 2 * heads * width * vocab + 4 * rows * seen * width * layers
        # Attention multiplies floats whatever the weights are.
        return max(operations / peak, (weights + cache * depth * heads) / read) * 1e3

    return {"decode": ms(1, 1, 0), "decode at 896": ms(1, 1, 896), "prefill 512": ms(PROMPT, 1, 0),
            "16 together": ms(BATCH, BATCH, 0)}


def compare(folder, dtype, args):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stet = Stepper(args.build / "bench" / "stet_step", folder, dtype, args.threads, seqs=BATCH)
    peer = PAIRS[dtype]
    llama = Llama(gguf(folder, peer), args.threads, config["n_ctx"]) if peer else None
    together = DECODED // 3
    tests = {  # name -> (Stet's command, llama.cpp's call, tokens, steps)
        "decode": (f"tg {DECODED}", lambda: llama.tg(DECODED, 0), DECODED, DECODED),
        "decode at 896": (f"tg {DECODED} depth 896", lambda: llama.tg(DECODED, 896), DECODED, DECODED),
        "prefill 512": (f"pp {PROMPT}", lambda: llama.pp(PROMPT), PROMPT, 1),
        "16 together": (f"batch {BATCH} tg {together}", lambda: llama.together(together), BATCH * together, together),
    }
    difference = None
    if dtype == "f32":
        difference = check_same_model(stet, llama)
        if not difference < F32_TOLERANCE:
            raise SystemExit(f"not the same model: F32 logits differ by {difference:.1e} of the largest")
    ours, theirs, probes = {t: [] for t in tests}, {t: [] for t in tests}, []
    for turn in range(args.rounds + 1):
        probe = stet.ask("probe")
        for name, (command, call, _, _) in tests.items():
            time.sleep(0.03)  # let the other side's threads fall asleep
            a = stet.ms(command)
            time.sleep(0.03)
            b = call() if llama else None
            if turn:  # the first turn warms both up
                ours[name].append(a)
                theirs[name].append(b)
        if turn:
            probes.append(probe)
    probe = {key: statistics.median(p[key] for p in probes) for key in probes[0]}
    least = bounds(config, stet.hello, probe, dtype)
    rows = []
    for name, (_, _, tokens, steps) in tests.items():
        ms = statistics.median(ours[name])
        row = {"test": name, "stet": dtype, "llama_cpp": peer, "stet_tok_s": tokens / ms * 1e3, "stet_ms": ms / steps,
               "stet_best_ms": min(ours[name]) / steps, "bound_ms": least[name], "of_bound": least[name] / (ms / steps),
               "read_gb_s": probe["read_gb_s"], "f32_gflop_s": probe["f32_gflop_s"], "int8_gop_s": probe["int8_gop_s"]}
        if llama:
            row["llama_cpp_tok_s"] = tokens / statistics.median(theirs[name]) * 1e3
            row["llama_cpp_ms"] = statistics.median(theirs[name]) / steps
            row["llama_cpp_best_ms"] = min(theirs[name]) / steps
            row["ratio"] = statistics.median(b / a for a, b in zip(ours[name], theirs[name]))
            row["ratio_of_best"] = min(theirs[name]) / min(ours[name])
        rows.append(row)
    about = {"version": stet.hello["version"], "compiler": stet.hello["compiler"], "kernels": stet.hello["kernels"]}
    stet.close()
    if llama:
        llama.close()
    return rows, about, difference


def table(rows):
    out = ["| test | Stet | llama.cpp | Stet tok/s | llama.cpp tok/s | ratio | of the best | Stet ms | bound ms | of bound "
           "| read GB/s | f32 GFLOP/s | int8 GOP/s |", "|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        peer = [f"{r['llama_cpp_tok_s']:.1f}", f"{r['ratio']:.2f}", f"{r['ratio_of_best']:.2f}"] if r["llama_cpp"] else ["–"] * 3
        out.append(f"| {r['test']} | {r['stet']} | {(r['llama_cpp'] or '–').upper()} | {r['stet_tok_s']:.1f} | {peer[0]} | {peer[1]} "
                   f"| {peer[2]} | {r['stet_ms']:.2f} | {r['bound_ms']:.2f} | {r['of_bound'] * 100:.0f} % | {r['read_gb_s']:.1f} "
                   f"| {r['f32_gflop_s']:.0f} | {r['int8_gop_s']:.0f} |")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default=",".join(PAIRS), help="Stet's types, comma-separated")
    parser.add_argument("--build", type=pathlib.Path, default=DEFAULT_BUILD, help="where stet_step was built")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    dtypes = args.only.split(",")
    if unknown := set(dtypes) - set(PAIRS):
        parser.error(f"--only: no such type: {', '.join(sorted(unknown))}")
    if args.rounds < 1 or args.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    info = {"machine": machine(), "threads": args.threads, "rounds": args.rounds,
            "llama_cpp": f"llama-cpp-python {llama_cpp.__version__}",
            "llama_cpp_system": llama_cpp.llama_print_system_info().decode().strip()}
    rows = []
    for dtype in dtypes:
        found, about, difference = compare(args.folder, dtype, args)
        rows += found
        info["stet"] = about
        if difference is not None:
            info["f32_logits_differ_by"] = difference
        if dtype == "int4":
            info["q4_0_tensors"] = tensor_types(args.folder / "model-q4_0.gguf")
    if args.json:
        print(json.dumps({**info, "rows": rows}))
        return
    print(f"{info['machine']}; {args.threads} threads, {args.rounds} rounds\n"
          f"Stet {info['stet']['version']}, {info['stet']['compiler']}, {info['stet']['kernels']}; "
          f"{info['llama_cpp']}: {info['llama_cpp_system']}")
    if "f32_logits_differ_by" in info:
        print(f"the same model: F32 logits behind 64 tokens differ by {info['f32_logits_differ_by']:.1e} of the largest")
    if "q4_0_tensors" in info:
        print(f"llama.cpp's Q4_0 file: {info['q4_0_tensors']}")
    print("\n" + table(rows))


if __name__ == "__main__":
    main()
