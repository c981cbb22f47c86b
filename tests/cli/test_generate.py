"""stet generate with one prompt. In the bundled model's vocabulary an id is a byte, so texts can be checked from ids."""

import json
import unittest

from program import BUNDLED, LONG, PLAIN, SOURCE, ProgramTest, start

CONFIG = json.loads((BUNDLED / "config.json").read_text())
CONTEXT = CONFIG["n_positions"]


class Generate(ProgramTest):
    def test_text_is_the_ids_bytes_on_stdout_and_in_json(self):
        out = self.ok("generate", "ROMEO:", "-n", 60, "--temperature", "0.8")
        told = self.json("generate", "ROMEO:", "-n", 60, "--temperature", "0.8", "--json")
        self.assertEqual(out, bytes(told["ids"]))
        self.assertEqual(told["text"].encode(), out)
        self.assertEqual(len(out), 60)
        self.assertNotIn("text_hex", told)

    def test_json_object(self):
        told = self.json("generate", "ROMEO:", "-n", 5, "--seed", 7, "--json")
        self.assertEqual(told["schema"], 1)
        self.assertEqual((told["prompt_tokens"], told["new_tokens"], len(told["ids"])), (6, 5, 5))
        self.assertEqual((told["reason"], told["seed"], told["sequence"], told["dtype"]), ("length", 7, 0, "f32"))
        self.assertGreater(told["timings"]["prefill_seconds"], 0)
        self.assertGreater(told["timings"]["ms_per_token"], 0)
        cache = told["cache"]
        self.assertEqual(cache["mode"], "contiguous")
        per_token = 2 * CONFIG["n_layer"] * CONFIG["n_embd"] * 4
        self.assertEqual(cache["bytes_per_token"], per_token)
        # The last new token is never read, so it may be stored or not.
        self.assertIn(cache["used_bytes"], (10 * per_token, 11 * per_token))
        self.assertGreaterEqual(cache["reserved_bytes"], CONTEXT * per_token)

    def test_a_llama_whose_tokenizer_is_not_known_takes_ids(self):
        for file in ("config.json", "model.safetensors"):
            (self.folder / file).write_bytes((SOURCE / "tests" / "golden" / "qwen2" / file).read_bytes())
        other = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "Metaspace"}}
        (self.folder / "tokenizer.json").write_text(json.dumps(other))
        self.assertEqual(len(self.ok("generate", "-m", self.folder, "--ids", "1,2", "-n", 3).split()), 3)
        self.fails(1, ["generate", "-m", self.folder, "text"], "no tokenizer", "tokenizer.json", "Metaspace", "--ids")
        self.assertFalse(self.json("info", self.folder, "--json")["tokenizer"])
        (self.folder / "tokenizer.json").write_text("{broken")
        self.fails(1, ["generate", "-m", self.folder, "--ids", "1,2"], "tokenizer.json", "JSON")

    def test_summary_is_one_line_on_stderr(self):
        code, _, err = self.run_stet("generate", "ROMEO:", "-n", 5)
        self.assertEqual(code, 0)
        self.assertRegex(err, r"\Astet: 6 prompt \+ 5 new tokens; prefill \d+ tok/s; [\d.]+ ms per token; "
                              r"cache \d+ of \d+ bytes used; stopped: length\n\Z")

    def test_greedy_is_the_largest_published_logit(self):
        golden = json.loads((PLAIN / "golden.json").read_text())
        for n in range(1, len(golden["ids"])):
            row = golden["logits"][n - 1]
            prompt = ",".join(map(str, golden["ids"][:n]))
            told = self.json("generate", "-m", PLAIN, "--ids", prompt, "-n", 1, "--json")
            self.assertEqual(told["ids"], [row.index(max(row))])

    def test_paths_change_nothing(self):
        def ids(*flags, seed=3):
            return self.json("generate", "JULIET:", "-n", 40, "--temperature", 1, "--seed", seed, "--json", *flags)["ids"]

        base = ids()
        self.assertNotEqual(ids(seed=4), base)
        for flags in (["--cache", "none"], ["--chunk", 1], ["--chunk", 3], ["--threads", 1], ["--threads", 3]):
            self.assertEqual(ids(*flags), base, flags)
        self.assertEqual(len(ids("--dtype", "f64")), 40)

    def test_prompt_from_stdin_and_file_is_the_same_byte_for_byte(self):
        text = "First Citizen:\nBefore we proceed"
        (self.folder / "prompt.txt").write_text(text)
        told = [self.json("generate", text, "-n", 8, "--json"),
                self.json("generate", "-n", 8, "--json", stdin=text.encode()),
                self.json("generate", "--file", "-", "-n", 8, "--json", stdin=text.encode()),
                self.json("generate", "--file", self.folder / "prompt.txt", "-n", 8, "--json")]
        self.assertEqual({tuple(t["ids"]) for t in told}, {tuple(told[0]["ids"])})
        self.assertEqual({t["prompt_tokens"] for t in told}, {len(text)})
        self.assertEqual(self.json("generate", "-n", 0, "--json", stdin=b"\xff\x00\n")["prompt_tokens"], 3)
        self.fails(1, ["generate", "--file", self.folder / "none.txt"], "none.txt")
        self.fails(1, ["generate", "--file", self.folder], self.folder)

    def test_empty_prompt_is_the_start_token_or_refused(self):
        start_token = CONFIG["bos_token_id"]
        told = self.json("generate", "", "-n", 8, "--json")
        self.assertEqual(told["prompt_tokens"], 1)
        self.assertEqual(told["ids"], self.json("generate", "--ids", start_token, "-n", 8, "--json")["ids"])
        self.assertEqual(told["ids"], self.json("generate", "-n", 8, "--json", stdin=b"")["ids"])
        self.fails(1, ["generate", "", "-m", PLAIN], "empty", "start token")

    def test_prompt_that_fills_the_context_is_refused_with_both_numbers(self):
        for n in (CONTEXT, CONTEXT + 172):
            self.fails(1, ["generate", "x" * n], n, CONTEXT)
        self.fails(1, ["generate", "-m", PLAIN, "--ids", ",".join(["1"] * 12)], 12)

    def test_new_tokens_beyond_the_context_stop_there(self):
        told = self.json("generate", "ROMEO:", "-n", 100000, "--json")
        self.assertEqual(told["reason"], "context")
        self.assertEqual(told["prompt_tokens"] + told["new_tokens"], CONTEXT)
        self.assertEqual(self.json("generate", "x" * (CONTEXT - 1), "-n", 5, "--json")["new_tokens"], 1)

    def test_no_new_token_is_prefill_only(self):
        code, out, err = self.run_stet("generate", "ROMEO:", "-n", 0)
        self.assertEqual((code, out), (0, b""))
        self.assertIn("6 prompt + 0 new", err)
        told = self.json("generate", "ROMEO:", "-n", 0, "--json")
        self.assertEqual((told["ids"], told["text"], told["reason"]), ([], "", "length"))
        self.assertIsNone(told["timings"]["ms_per_token"])

    def test_stop_strings(self):
        whole = self.json("generate", "ROMEO:", "-n", 60, "--json")["text"]
        stop, later = whole[20:23], whole[40:43]
        before = whole[: whole.find(stop)]
        flags = ["generate", "ROMEO:", "-n", 60, "--stop", later, "--stop", stop, "--stop", "{}"]
        told = self.json(*flags, "--json")
        self.assertEqual((told["text"], told["reason"]), (before, "stop_string"))
        self.assertEqual(self.ok(*flags).decode(), before)
        self.fails(1, ["generate", "-m", PLAIN, "--ids", "1", "--stop", "x"], "tokenizer")

    def test_echo(self):
        flags = ["generate", "ROMEO:", "-n", 9]
        self.assertEqual(self.ok(*flags, "--echo"), b"ROMEO:" + self.ok(*flags))

    def test_bytes_that_are_not_utf8(self):
        flags = ["generate", "\u2603", "-n", 100, "--temperature", 1000, "--seed", 1]  # every byte about as likely
        told = self.json(*flags, "--json")
        exact = bytes(told["ids"])
        self.assertRaises(UnicodeDecodeError, exact.decode)
        self.assertEqual(bytes.fromhex(told["text_hex"]), exact)
        self.assertIn("\ufffd", told["text"])
        self.assertEqual(self.ok(*flags), exact)  # raw in a pipe, control characters included

    def test_model_without_tokenizer_prints_ids(self):
        flags = ["generate", "-m", PLAIN, "--ids", "8,10", "-n", 4]
        told = self.json(*flags, "--json")
        self.assertEqual(told["text"], "")
        self.assertEqual(self.ok(*flags).decode(), " ".join(map(str, told["ids"])) + "\n")
        self.fails(1, ["generate", "-m", PLAIN, "text"], "tokenizer", "--ids")
        self.fails(1, ["generate", "-m", PLAIN, "--ids", "23"], 23)

    def test_streams_while_it_runs(self):
        with start("generate", "-m", LONG, "--ids", 1, "-n", 10000) as process:
            self.assertNotEqual(process.stdout.read(1), b"")
            self.assertIsNone(process.poll(), "the first token came only with the last one")
            process.stdout.close()  # and the reader leaves: the silent end
            self.assertEqual(process.stderr.read(), b"")
            self.assertEqual(process.wait(), 0)


if __name__ == "__main__":
    unittest.main()
