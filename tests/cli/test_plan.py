"""stet plan: the memory bill, as its users meet it."""

import unittest

from program import BUNDLED, PLAIN, SOURCE, ProgramTest

KIB, GIB = 1024, 1024**3
SCHEMA = {"context", "batch", "kv_k", "kv_v", "layout", "bytes_per_token", "bytes_per_sequence", "bytes_total"}


class Plan(ProgramTest):
    def rows(self, *args):
        return self.json("plan", "--json", *args)["rows"]

    def row(self, *args):
        (row,) = self.rows(*args)
        return row

    def test_published_table(self):
        for model, kib, at_8k in (("gpt2", 36, 0.28125), ("llama-2-7b", 512, 4), ("llama-3-8b", 128, 1), ("llama-3-70b", 320, 2.5)):
            row = self.row("--model", model, "--context", "8k", "--batch", 1, "--kv", "f16")
            self.assertEqual(row["bytes_per_token"], kib * KIB)
            self.assertEqual(row["bytes_rows"], at_8k * GIB)
            self.assertEqual(row["bytes_per_sequence"], at_8k * GIB)
            self.assertAlmostEqual(row["bytes_total"] / GIB, at_8k, 2)
            self.assertGreater(row["bytes_total"], row["bytes_cells"], "tables count")
        row = self.row("--model", "llama-3-8b", "--context", "128k", "--batch", 32, "--kv", "f16")
        self.assertEqual(row["bytes_cells"], 512 * GIB)
        self.assertEqual(self.row("--model", "llama-2-70b", "--kv", "f16")["bytes_per_token"], 327680)

    def test_lists_are_multiplied(self):
        told = self.json("plan", "--model", "llama-3-8b", "--context", "1k,8192,128K", "--batch", "1,32", "--kv", "f16", "--kv", "int8,int4", "--cache", "contiguous,paged", "--page", 64, "--json")
        self.assertEqual((told["schema"], told["model"]), (1, "llama-3-8b"))
        rows = told["rows"]
        self.assertEqual(len(rows), 3 * 2 * 2 * 2)
        self.assertEqual({(r["context"], r["batch"], r["kv_k"], r["kv_v"], r["layout"]) for r in rows},
                         {(c, b, k, v, l) for c in (1024, 8192, 131072) for b in (1, 32) for k, v in (("f16", "f16"), ("int8", "int4")) for l in ("contiguous", "paged")})
        for row in rows:
            self.assertLessEqual(SCHEMA, set(row))
            self.assertEqual(row.get("page_tokens"), 64 if row["layout"] == "paged" else None)
            self.assertEqual(row["past_context"], row["context"] > 8192)
            self.assertEqual(row["bytes_with_weights"], row["bytes_total"] + told["weight_bytes"])
            # 8 heads of 128 in 32 layers: 16 bits, or int8 and int4 with a scale of 4 bytes each.
            self.assertEqual(row["bytes_per_token"], 32 * 8 * 128 * 4 if row["kv_k"] == "f16" else 32 * 8 * (132 + 68))

    def test_kv_with_layers_changes_the_cache_before_it(self):
        rows = self.rows("--model", "gpt2", "--kv", "f16", "--kv", "int8", "--kv", "0-1:f32", "--kv", "f16,int8")
        self.assertEqual([(r["kv_k"], r["kv_v"]) for r in rows],
                         [("f16", "f16"), ("0-1 f32, 2-11 int8", "0-1 f32, 2-11 int8"), ("f16", "int8")])
        self.assertEqual(rows[1]["bytes_per_token"], 2 * 12 * 64 * 8 + 10 * 12 * 2 * 68)
        # generate means the same with these flags.
        flags = ["-m", "random:gpt2", "--kv", "int8", "--kv", "0-1:f32"]
        dry = self.json("generate", "--dry-run", "--json", *flags)
        self.assertEqual(self.row(*flags)["bytes_total"], dry["cache_bytes"])
        flags = ["-m", "random:gpt2", "--kv", "0:int4"]
        self.assertEqual(self.row(*flags)["bytes_total"], self.json("generate", "--dry-run", "--json", *flags)["cache_bytes"])

    def test_a_local_bill_is_what_generate_reserves(self):
        for cache in ("contiguous", "growing", "paged", "none"):
            for kv in ("f32", "int8,int4"):
                flags = ["--cache", cache, "--kv", kv]
                used = self.json("generate", "a", "-n", 2, "--json", *flags)["cache"]
                told = self.json("plan", "--json", *flags)
                row = told["rows"][0]
                self.assertEqual(row["bytes_total"], used["reserved_bytes"], flags)
                self.assertEqual(row["bytes_per_token"], used["bytes_per_token"], flags)
                self.assertEqual((row["bytes_total"], told["cache_bytes"]), (told["cache_bytes"], row["bytes_total"]))
                self.assertEqual(told["model_context"], 128)
        self.assertEqual(self.row("-m", BUNDLED / "config.json"), self.row("-m", BUNDLED))
        self.assertEqual(self.row("-m", "random:llama-tiny")["context"], 512)

    def test_default_types(self):
        # What is published has 16 bits; what is run here the type of the arithmetic.
        self.assertEqual(self.row("-m", "gpt2")["kv_k"], "f16")
        self.assertEqual(self.row("-m", "gpt2", "--dtype", "f64")["kv_k"], "f64")
        self.assertEqual(self.row("-m", "gpt2", "--dtype", "int4")["kv_k"], "f16")
        self.assertEqual(self.row("-m", "random:gpt2")["kv_k"], "f32")
        self.assertEqual(self.row("-m", "random:gpt2", "--dtype", "f16")["kv_k"], "f32")
        self.assertEqual(self.json("plan", "-m", "gpt2", "--json")["dtype"], "f16")

    def test_a_folder_goes_before_a_preset(self):
        (self.folder / "gpt2").symlink_to(PLAIN)
        told = self.json("plan", "-m", "gpt2", "--json", cwd=self.folder)
        self.assertEqual((told["model_context"], told.get("source")), (12, None))
        self.assertEqual(self.json("plan", "-m", "gpt2", "--json", cwd=SOURCE)["source"], "openai-community/gpt2")

    def test_windows(self):
        rows = self.rows("-m", "mistral-7b", "--context", "4k,32k", "--kv", "f16")
        self.assertEqual([r["bytes_rows"] for r in rows], [GIB // 2] * 2)
        told = self.json("plan", "-m", "gemma-3-4b", "--json")
        self.assertEqual(told["windows"], {"layers": 29, "tokens": 1024})
        self.assertIn("29 of 34 layers see the last 1,024 tokens", self.ok("plan", "-m", "gemma-3-4b").decode())
        self.assertEqual(self.row("-m", "deepseek-v2")["bytes_per_token"], 60 * 576 * 2)

    def test_crossings(self):
        told = self.json("plan", "-m", "gpt2", "--json")["crossings"]
        self.assertEqual((told["attention_layers"], told["attention_with_head"]), (4608, 6702))
        told = self.json("plan", "-m", "char-gpt", "--dtype", "f64", "--json")["crossings"]
        self.assertEqual((told["attention_layers"], told["attention_with_head"]), (768, 776))
        self.assertEqual(told["cache_passes_weights"], [{"kv_k": "f64", "kv_v": "f64", "layout": "contiguous", "batch": 1, "context": 800}])
        told = self.json("plan", "-m", "mistral-7b", "--json")["crossings"]
        self.assertEqual((told["attention_layers"], told["cache_passes_weights"][0]["context"]), (None, None))
        out = self.ok("plan", "-m", "char-gpt", "--dtype", "f64").decode()
        for words in ("passes the weights at 800 tokens", "at 768 tokens (layers alone)", "at 776 tokens (with the output head)"):
            self.assertIn(words, out)

    def test_what_fits(self):
        told = self.json("plan", "-m", "llama-3-8b", "--context", "8k", "--batch", "1,8", "--fit", "24GiB,10GB", "--json")
        fits = told["what_fits"]
        self.assertEqual(len(fits), 6)
        for fit in fits:
            if fit["room_bytes"] == 10 * 10**9:  # less than the weights
                self.assertEqual(0, fit[fit["asked"]])
                continue
            self.assertEqual(fit["room_bytes"], 24 * GIB)
            beyond = {"context": fit["context"], "batch": fit["batch"]}
            beyond[fit["asked"]] += 1
            for at, holds in ((fit, True), (beyond, False)):
                row = self.row("-m", "llama-3-8b", "--context", at["context"], "--batch", at["batch"])
                self.assertEqual(row["bytes_with_weights"] <= fit["room_bytes"], holds, fit)
        out = self.ok("plan", "-m", "llama-3-8b", "--fit", "24GiB").decode()
        for words in ("longest context", "largest batch", "15.0 GiB of weights in f16 included"):
            self.assertIn(words, out)
        self.assertIn("the weights alone do not fit", self.ok("plan", "-m", "llama-3-8b", "--fit", "1.5G").decode())

    def test_text(self):
        out = self.ok("plan", "-m", "gpt2", "--context", "1k,8k", "--kv", "f16").decode()
        for words in ("openai-community/gpt2", "36.0 KiB", "0.281 GiB", "past its context of 1,024", "36.0 MiB"):
            self.assertIn(words, out)
        self.assertEqual(out.count("past its context of 1,024"), 1)
        # A local model past its context is shown too, without the plan that could not be run.
        self.assertIn("past its context of 1,024", self.ok("plan", "-m", "random:gpt2", "--context", 2000).decode())
        self.assertNotIn("peak_bytes", self.json("plan", "-m", "random:gpt2", "--context", 2000, "--json"))

    def test_list(self):
        told = self.json("plan", "--list", "--json")
        presets = {p["preset"]: p for p in told["presets"]}
        for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b", "mistral-7b", "gemma-3-4b", "deepseek-v2", "qwen2.5-7b"):
            self.assertIn(name, presets)
            row = self.row("-m", name)
            self.assertEqual(row["bytes_per_token"], presets[name]["bytes_per_token"])
            self.assertEqual(row["context"], presets[name]["model_context"])
        out = self.ok("plan", "--list").decode()
        for name in presets:
            self.assertIn(name, out)
        self.assertIn("meta-llama/Meta-Llama-3-8B", out)

    def test_refused(self):
        self.fails(1, ["plan", "-m", "lama-3-8b"], "lama-3-8b", "llama-3-8b", "--list")
        self.fails(1, ["plan", "-m", "no such model"], "no such model", "--list")
        self.fails(1, ["plan", "-m", "no\n\x1b[31mmodel"], "--list")
        self.fails(1, ["plan", "-m", self.folder], self.folder, "config.json")
        other = self.folder / "other"
        other.mkdir()
        (other / "config.json").write_text('{"model_type": "opt"}')
        self.fails(1, ["plan", "-m", other], "model_type", "opt", "not supported")
        self.fails(1, ["plan", "-m", "random:no-such"], "no-such")
        self.fails(1, ["plan", "-m", "gpt2", "--kv", "12:int8"], "layers 12 to 12", "0 to 11")
        self.fails(1, ["plan", "-m", "gpt2", "--page", 64], "paged")
        self.fails(1, ["plan", "-m", "gpt2", "--context", 2**40], 2**40)
        self.fails(1, ["plan", "-m", "deepseek-v2", "--context", 2**36, "--batch", 65536], "cache")

    def test_usage(self):
        for flag, values in {
            "--context": ["", "0", "-1", "0k", "1k,", ",1k", "1k,,8k", "8kk", "1.5k", "k", "x", str(2**40 + 1), "1099511627776k", "99999999999999999999", "1k 8k"],
            "--batch": ["", "0", "-1", "1,", "1k", "65537", "x", "99999999999999999999"],
            "--kv": ["", "f33", "f16,", "f16,int8,int4", "1-:f32"],
            "--cache": ["", "pages", "paged,", "paged;growing"],
            "--fit": ["", "0", "-1G", "0GiB", "G", "16X", "16GiBs", "1e3", "inf", "nan", "9999999999999T", "16GiB,", "0x10", "1..5G"],
            "--dtype": ["f8", ""],
            "--page": ["0", "17"],
            "-m": [""],
        }.items():
            for value in values:
                with self.subTest(flag=flag, value=value):
                    self.fails(2, ["plan", flag, value], flag.lstrip("-"), "see stet plan --help")

    def test_help_has_examples_that_work(self):
        out = self.ok("plan", "--help").decode()
        examples = [line.split()[1:] for line in out.splitlines() if line.startswith("  stet plan")]
        self.assertGreaterEqual(len(examples), 5)
        for example in examples:
            if "gpt2/" in example:
                example[example.index("gpt2/")] = str(PLAIN)
            self.ok(*example)


if __name__ == "__main__":
    unittest.main()
