"""stet eval: its numbers, recomputed here from logits that PyTorch or `stet logits` made; refusals; Ctrl-C."""

import json
import math
import shutil
import struct
import unittest

from program import BUNDLED, LONG, PLAIN, ProgramTest, start
from test_logits import read_npy

GOLDEN = json.loads((PLAIN / "golden.json").read_text())


def log_softmax(row):
    largest = max(row)
    log_sum = math.log(math.fsum(math.exp(x - largest) for x in row))
    return [x - largest - log_sum for x in row]


def mean_nll(logits, ids):
    return math.fsum(-log_softmax(row)[next_id] for row, next_id in zip(logits, ids[1:])) / (len(ids) - 1)


def with_outlier_keys(folder, layers, width, head_dim, size):
    """Adds `size` to the first key channel of every head: it moves all scores of a query alike, which softmax does not
    see, but stretches the one scale that int8 and int4 have for the row."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    for layer in range(layers):
        entry = header[f"transformer.h.{layer}.attn.c_attn.bias"]
        assert (entry["dtype"], entry["shape"]) == ("F32", [3 * width])
        for channel in range(width, 2 * width, head_dim):
            at = 8 + length + entry["data_offsets"][0] + 4 * channel
            data[at:at + 4] = struct.pack("<f", struct.unpack("<f", data[at:at + 4])[0] + size)
    path.write_bytes(data)


TEXT = "ROMEO: What light through yonder window breaks?\nIt is the east, and Juliet is the sun.\n" * 4


class Eval(ProgramTest):
    def ids_file(self, ids, between=" "):
        path = self.folder / "ids.txt"
        path.write_text(between.join(map(str, ids)))
        return path

    def test_likelihood_by_logits_of_an_independent_implementation(self):
        told = self.json("eval", "-m", PLAIN, "--ids", self.ids_file(GOLDEN["ids"]), "--dtype", "f64", "--json")
        self.assertEqual((told["schema"], told["tokens"], told["scored"]), (1, len(GOLDEN["ids"]), len(GOLDEN["ids"]) - 1))
        expected = mean_nll(GOLDEN["logits"], GOLDEN["ids"])
        f32, f64 = told["rows"]
        self.assertEqual((f32["dtype"], f64["dtype"]), ("f32", "f64"))
        self.assertAlmostEqual(f64["nll"], expected, delta=1e-12)
        self.assertAlmostEqual(f32["nll"], expected, delta=1e-5)
        self.assertAlmostEqual(f64["perplexity"], math.exp(expected), delta=1e-9)
        self.assertEqual((f32["kl"], f32["top1"], f32["max_logit_distance"]), (0, 1, 0))

    def test_every_number_of_a_type_from_both_models_logits(self):
        ids = self.json("tokenize", "ROMEO: What light through yonder window breaks?", "--json")
        prompt = ",".join(map(str, ids))
        a, b = (read_npy(self.ok("logits", "--ids", prompt, "--dtype", d))[1][:-1] for d in ("f32", "int4"))
        row = self.json("eval", "--ids", self.ids_file(ids, ",\n"), "--dtype", "int4", "--json")["rows"][1]
        kl, same, distance = [], 0, 0
        for x, y in zip(a, b):
            p, q = log_softmax(x), log_softmax(y)
            kl.append(math.fsum(math.exp(s) * (s - t) for s, t in zip(p, q)))
            same += x.index(max(x)) == y.index(max(y))
            distance = max(distance, max(abs(s - t) for s, t in zip(x, y)))
        self.assertEqual(row["dtype"], "int4")
        self.assertAlmostEqual(row["nll"], mean_nll(b, ids), delta=1e-12)
        self.assertAlmostEqual(row["kl"], math.fsum(kl) / len(kl), delta=1e-12)
        self.assertAlmostEqual(row["top1"], same / len(a), delta=1e-12)
        self.assertEqual(row["max_logit_distance"], distance)

    def test_every_number_of_a_codec_from_both_caches_logits(self):
        ids = self.json("tokenize", "ROMEO: What light through yonder window breaks?", "--json")
        prompt = ",".join(map(str, ids))
        for dtype, plain, kv in (("f32", "f32", "int8,int4"), ("int8", "f32", "1-2:int4"), ("f64", "f64", "bf16")):
            with self.subTest(dtype=dtype, kv=kv):
                a, b = (read_npy(self.ok("logits", "--ids", prompt, "--dtype", dtype, *flags))[1][:-1]
                        for flags in ([], ["--kv", kv]))
                told = self.json("eval", "--ids", self.ids_file(ids), "--dtype", dtype, "--kv", kv, "--json")
                reference, row = told["rows"]
                self.assertEqual((reference["dtype"], reference["kv"]), (dtype, plain))
                self.assertEqual((row["dtype"], row["kv"]), (dtype, kv))
                kl = [math.fsum(math.exp(s) * (s - t) for s, t in zip(log_softmax(x), log_softmax(y)))
                      for x, y in zip(a, b)]
                self.assertAlmostEqual(reference["nll"], mean_nll(a, ids), delta=1e-12)
                self.assertAlmostEqual(row["nll"], mean_nll(b, ids), delta=1e-12)
                self.assertAlmostEqual(row["kl"], math.fsum(kl) / len(kl), delta=1e-12)
                same = sum(x.index(max(x)) == y.index(max(y)) for x, y in zip(a, b))
                self.assertAlmostEqual(row["top1"], same / len(a), delta=1e-12)
                self.assertEqual(row["max_logit_distance"],
                                 max(abs(s - t) for x, y in zip(a, b) for s, t in zip(x, y)))

    def test_codecs_cost_their_bytes(self):
        told = self.json("eval", "--text", "-", "--kv", "all", "--kv", "2:int4", "--json", stdin=TEXT.encode())
        # 4 layers of 4 heads of 32 dims; int8 and int4 with a scale of 4 bytes for each row.
        bytes_of = {"f32": 128, "bf16": 64, "f16": 64, "int8": 36, "int4": 20}
        pairs = ["f32", "bf16", "f16", "int8", "int8,int4", "int4,int8", "int4"]
        self.assertEqual([r["kv"] for r in told["rows"]], pairs + ["2:int4"])
        for row in told["rows"][:-1]:
            k, v = (row["kv"] + "," + row["kv"]).split(",")[:2]
            self.assertEqual(row["cache_bytes_per_token"], 4 * 4 * (bytes_of[k] + bytes_of[v]), row["kv"])
        self.assertEqual(told["rows"][-1]["cache_bytes_per_token"], 4 * (3 * 256 + 40))
        table = self.ok("eval", "--text", "-", "--kv", "all", stdin=TEXT.encode()).decode().splitlines()
        self.assertIn("weights in f32", table[0])
        self.assertEqual([(l.split()[0], int(l.split()[-1])) for l in table[2:]],
                         [(r["kv"], r["cache_bytes_per_token"]) for r in told["rows"][:-1]])

    def test_poor_codecs_are_warned_about(self):
        planted = self.folder / "planted"
        shutil.copytree(BUNDLED, planted)
        with_outlier_keys(planted, layers=4, width=128, head_dim=32, size=200)
        flags = ["eval", "--text", "-", "--kv", "f32", "--kv", "f32,int4", "--kv", "int4,f32", "--json"]
        told = {}
        for model in (BUNDLED, planted):
            code, out, err = self.run_stet(*flags, "-m", model, stdin=TEXT.encode())
            self.assertEqual(code, 0, err)
            told[model] = {r["kv"]: r for r in json.loads(out)["rows"][1:]}, err
        sound, quiet = told[BUNDLED]
        poor, warned = told[planted]
        for row in list(sound.values()) + list(poor.values()):
            self.assertEqual(row["poor"], row["top1"] < 0.9)
        self.assertEqual((poor["f32"]["kl"], poor["f32"]["top1"]), (0, 1))
        # The outlier is in the keys alone, and only their codec suffers.
        self.assertLess(poor["int4,f32"]["top1"], 0.9)
        self.assertGreater(poor["int4,f32"]["kl"], 10 * sound["int4,f32"]["kl"])
        self.assertGreater(poor["f32,int4"]["top1"], 0.9)
        self.assertGreater(sound["int4,f32"]["top1"], 0.9)
        self.assertEqual(quiet, "")
        self.assertRegex(warned, r"\Astet: warning: with --kv int4,f32 [^\n]* at only \d+\.\d % [^\n]*\n\Z")

    def test_flips(self):
        told = self.json("eval", "--text", "-", "--flips", "--steps", 30, "--json", stdin=b"ROMEO:")
        self.assertEqual((told["prompt_tokens"], told["steps"], len(told["ids"])), (6, 30, 30))
        kinds = ["f16", "bf16", "int8", "int4"]
        self.assertEqual([(r["dtype"], r["kv"]) for r in told["rows"]],
                         [("f32", "f32")] + [(k, "f32") for k in kinds] + [("f32", k) for k in kinds])
        # What f32 made is what generate makes, and each type's own greedy text parts from it at its first flip.
        greedy = lambda *flags: self.json("generate", "ROMEO:", "-n", 30, "--temperature", 0, "--ignore-eos", "--json",
                                          *flags)["ids"]
        plain = greedy()
        self.assertEqual(told["ids"], plain)
        self.assertEqual(told["text"], self.json("generate", "ROMEO:", "-n", 30, "--temperature", 0, "--json")["text"])
        flipped = 0
        for row in told["rows"]:
            with self.subTest(dtype=row["dtype"], kv=row["kv"]):
                own = greedy("--dtype", row["dtype"], "--kv", row["kv"])
                parts = next((i for i, (a, b) in enumerate(zip(plain, own)) if a != b), None)
                first = row["first_flip"]
                self.assertEqual(first is None, parts is None)
                if first:
                    flipped += 1
                    self.assertEqual((first["step"], first["was"], first["is"]), (parts + 1, plain[parts], own[parts]))
                self.assertEqual(row["max_logit_distance"], max(row["distances"]))
                self.assertEqual((row["compared"], row["differing"]), (30 * 256, 0))
                self.assertIs(row["cached_equals_recomputed"], True)
        self.assertGreater(flipped, 0)
        self.assertIs(told["equal"], True)
        table = self.ok("eval", "--text", "-", "--flips", "--steps", 30, stdin=b"ROMEO:").decode()
        self.assertEqual(table.count("yes, 7680 values"), 9)

    def test_flips_of_what_is_asked_for(self):
        rows = lambda *flags: [(r["dtype"], r["kv"]) for r in
                               self.json("eval", "-m", PLAIN, "--ids", self.ids_file([1, 2]), "--flips", "--json", *flags)["rows"]]
        self.assertEqual(rows("--dtype", "bf16"), [("f32", "f32"), ("bf16", "f32")])
        self.assertEqual(rows("--kv", "0:int8"), [("f32", "f32"), ("f32", "0:int8")])
        self.assertEqual(rows("--kv", "int8,f16", "--dtype", "int4,int8"),
                         [("f32", "f32"), ("int4", "f32"), ("int8", "f32"), ("f32", "int8,f16")])

    def test_flips_wrong_use(self):
        ids = self.ids_file([1, 2, 3])
        flips = ["eval", "-m", PLAIN, "--ids", ids, "--flips"]
        self.fails(1, [*flips, "--tokens", 3, "--steps", 10], "3 tokens of prompt", "10 steps", "12")
        self.fails(1, [*flips, "--kv", "7:int8"], "7")
        self.fails(2, [*flips, "--steps", 0], "--steps")
        self.fails(2, [*flips, "--window", 8], "--window")
        self.fails(2, ["eval", "-m", PLAIN, "--ids", ids, "--steps", 3], "--flips")
        self.fails(2, ["eval", "-m", PLAIN, "--ids", ids, "--report", self.folder / "x"], "--flips")
        self.assertFalse((self.folder / "x").exists())
        self.fails(2, ["eval", "--flips"], "--text")

    def test_generate_warns_of_fluent_text_that_is_not_the_models(self):
        planted = self.folder / "planted"
        shutil.copytree(BUNDLED, planted)
        with_outlier_keys(planted, layers=4, width=128, head_dim=32, size=200)
        for model, kv, warned in ((planted, "int4", True), (planted, "f32,int4", False), (BUNDLED, "int4,f32", False),
                                  (BUNDLED, "int8", False), (planted, "bf16", False)):
            with self.subTest(model=model.name, kv=kv):
                code, out, err = self.run_stet("generate", TEXT[:120], "-m", model, "--kv", kv, "-n", 5)
                self.assertEqual(code, 0, err)
                self.assertEqual("warning: with a cache in " in err, warned, err)

    def test_text_table_and_order(self):
        text = self.folder / "play.txt"
        text.write_text("First Citizen:\nBefore we proceed any further, hear me speak.\n" * 8)
        told = self.json("eval", "--text", text, "--json")
        self.assertEqual([r["dtype"] for r in told["rows"]], ["f32", "bf16", "f16", "int8", "int4"])
        sizes = {r["dtype"]: r["weight_bytes"] for r in told["rows"]}
        self.assertEqual(sizes["bf16"], sizes["f16"])
        self.assertGreater(sizes["f32"], sizes["f16"])
        self.assertGreater(sizes["f16"], sizes["int8"])
        self.assertGreater(sizes["int8"], sizes["int4"])
        lines = self.ok("eval", "--text", text).decode().splitlines()
        self.assertEqual([l.split()[0] for l in lines[2:]], [r["dtype"] for r in told["rows"]])
        piped = self.json("eval", "--text", "-", "--json", "--dtype", "f32", stdin=text.read_bytes())
        self.assertEqual(piped["rows"][0], told["rows"][0])

    def test_windows_and_tokens(self):
        ids = [(i * i + 3 * i) % 65 for i in range(100)]
        base = ["eval", "-m", "random:char", "--ids", self.ids_file(ids), "--dtype", "f16", "--json"]
        told = self.json(*base, "--window", 40, "--tokens", 90)
        self.assertEqual((told["tokens"], told["window"], told["scored"]), (90, 40, 87))
        # A last window of one token has nothing to predict.
        self.assertEqual(self.json(*base, "--window", 40, "--tokens", 81)["scored"], 78)

    def test_refused(self):
        empty = self.ids_file([])
        self.fails(1, ["eval", "--ids", empty], empty, "empty")
        self.fails(1, ["eval", "--text", empty], empty, "empty")
        self.fails(1, ["eval", "--text", self.folder / "no"], "no")
        self.fails(1, ["eval", "-m", PLAIN, "--text", PLAIN / "config.json"], "config.json", "no tokenizer")
        self.fails(1, ["eval", "--ids", self.ids_file([1])], "at least 2")
        self.fails(1, ["eval", "-m", PLAIN, "--ids", self.ids_file([1, 2, 99])], "token 3", 99, "vocabulary")
        self.fails(1, ["eval", "--ids", self.ids_file([1, -2])], "ids.txt", "-2")
        self.fails(1, ["eval", "--ids", self.ids_file([1, "x"])], "ids.txt", "'x'")
        ids = self.ids_file([1, 2, 3])
        self.fails(1, ["eval", "-m", PLAIN, "--ids", ids, "--window", 13], 13, 12)
        self.fails(2, ["eval"], "--text FILE or --ids FILE")
        self.fails(2, ["eval", "--ids", ids, "--text", ids], "--text")
        self.fails(2, ["eval", "--ids", ids, "--dtype", "f32,int5"], "--dtype", "'int5'")
        self.fails(2, ["eval", "--ids", ids, "--dtype", ""], "--dtype")
        self.fails(2, ["eval", "--ids", ids, "--kv", "int5"], "--kv", "'int5'")
        self.fails(2, ["eval", "--ids", ids, "--kv", "int8", "--dtype", "f32,int8"], "--dtype", "one type")
        self.fails(1, ["eval", "--ids", ids, "--kv", "3-4:int8"], "layers 3 to 4", "0 to 3")
        self.fails(2, ["eval", "--ids", ids, "--window", 1], "--window")
        self.fails(2, ["eval", "--ids", ids, "--tokens", 1], "--tokens")

    def test_interrupted(self):
        process = start("eval", "-m", LONG, "--ids", self.ids_file([1] * 200000), "--threads", 9)
        self.interrupt(process, threads=9)
        code, out, err = self.end(process)
        self.assertEqual((code, out), (130, b""))
        self.assertRegex(err, r"\Astet: [^\n]*interrupted\n\Z")


if __name__ == "__main__":
    unittest.main()
