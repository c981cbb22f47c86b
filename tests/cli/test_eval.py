"""stet eval: its numbers, recomputed here from logits that PyTorch or `stet logits` made; refusals; Ctrl-C."""

import json
import math
import unittest

from program import LONG, PLAIN, ProgramTest, start
from test_logits import read_npy

GOLDEN = json.loads((PLAIN / "golden.json").read_text())


def log_softmax(row):
    largest = max(row)
    log_sum = math.log(math.fsum(math.exp(x - largest) for x in row))
    return [x - largest - log_sum for x in row]


def mean_nll(logits, ids):
    return math.fsum(-log_softmax(row)[next_id] for row, next_id in zip(logits, ids[1:])) / (len(ids) - 1)


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
