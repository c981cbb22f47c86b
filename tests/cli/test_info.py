"""stet info, against sizes worked out by hand."""

import json
import struct
import unittest

from program import BUNDLED, PLAIN, ProgramTest


def gpt2_parameters(vocab, context, width, layers):
    block = 12 * width * width + 13 * width  # attention 4 w^2 + 4 w, MLP 8 w^2 + 5 w, two norms 4 w
    return vocab * width + context * width + layers * block + 2 * width


class Info(ProgramTest):
    def test_bundled(self):
        config = json.loads((BUNDLED / "config.json").read_text())
        told = self.json("info", "--json")
        self.assertEqual(told, self.json("info", BUNDLED, "--json") | {"model": told["model"]})
        self.assertEqual(told["schema"], 1)
        self.assertEqual(told["parameters"], gpt2_parameters(config["vocab_size"], 128, 128, 4))
        shape = told["shape"]
        self.assertEqual((shape["layers"], shape["heads"], shape["width"], shape["context"]), (4, 4, 128, 128))
        self.assertEqual((told["bos"], told["eos"], told["tokenizer"]), (10, None, True))
        self.assertEqual(told["supported"], {"dtypes": ["f32", "f64", "bf16", "f16", "int8", "int4"], "caches": ["contiguous", "growing", "paged", "none"], "text": True})

    def test_published_gpt2(self):
        told = self.json("info", "random:gpt2", "--json")
        self.assertEqual(told["parameters"], 124439808)
        self.assertEqual(told["plan"]["cache_bytes_per_token"], 2 * 12 * 768 * 4)
        self.assertGreaterEqual(told["plan"]["weight_bytes"], 4 * told["parameters"])
        self.assertEqual(gpt2_parameters(50257, 1024, 1024, 24), self.json("info", "random:gpt2-medium", "--json")["parameters"])

    def test_plan(self):
        def plan(*flags):
            return self.json("info", "random:char", "--json", *flags)["plan"]

        one, eight, short, double = plan(), plan("--batch", 8), plan("--context", 16), plan("--dtype", "f64")
        self.assertEqual((eight["batch"], short["context"]), (8, 16))
        self.assertGreaterEqual(eight["cache_bytes"], 8 * 128 * one["cache_bytes_per_token"])
        self.assertLess(short["cache_bytes"], one["cache_bytes"])
        self.assertEqual(double["cache_bytes_per_token"], 2 * one["cache_bytes_per_token"])
        for p in (one, eight, short, double):
            self.assertEqual(p["peak_bytes"], p["weight_bytes"] + p["cache_bytes"] + p["scratch_bytes"])

    def test_text(self):
        out = self.ok("info", "random:gpt2", "--batch", 2).decode()
        for word in ("124439808", "73728", "2 sequences of 1024 tokens", "peak"):
            self.assertIn(word, out)

    def test_safetensors_file(self):
        path = PLAIN / "model.safetensors"
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        told = self.json("info", path, "--json")
        self.assertEqual({t["name"]: t["shape"] for t in told["tensors"]}, {k: v["shape"] for k, v in header.items()})
        self.assertEqual({t["dtype"] for t in told["tensors"]}, {"f32"})
        self.assertEqual(told["bytes"], len(data) - 8 - length)
        out = self.ok("info", path).decode()
        for name in header:
            self.assertIn(name, out)

    def test_refused(self):
        broken = self.folder / "broken.safetensors"
        broken.write_bytes((PLAIN / "model.safetensors").read_bytes()[:1000])
        self.fails(1, ["info", broken], broken)
        self.fails(1, ["info", "random:gpt2", "--context", 2000], 2000, 1024)
        self.fails(1, ["info", self.folder], "config.json")


if __name__ == "__main__":
    unittest.main()
