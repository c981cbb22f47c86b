"""Layouts, codecs, prefixes and saved caches, as generate, plan and cache show them."""

import json
import signal
import time
import unittest

from program import LONG, ProgramTest, start

PROMPT = "ROMEO: what say you of the night"


class Cache(ProgramTest):
    def told(self, *flags, prompt=PROMPT, n=30):
        return self.json("generate", prompt, "-n", n, "--temperature", 1, "--seed", 4, "--json", *flags)

    def test_no_layout_changes_the_text(self):
        for codec in ("f32", "int8", "bf16,int4"):
            plain = self.told("--kv", codec)
            for flags in (["--cache", "growing"], ["--cache", "paged", "--poison"], ["--cache", "paged", "--page", 128],
                          ["--cache", "none"], ["--cache", "paged", "--pool", 70, "--chunk", 7, "--threads", 3]):
                told = self.told("--kv", codec, *flags)
                self.assertEqual(told["ids"], plain["ids"], (codec, flags))
                self.assertEqual(told["cache"]["mode"], flags[1])
        windows = [self.told("--window", "20,3", "--cache", cache, "--chunk", 5)["ids"]
                   for cache in ("contiguous", "growing", "paged", "none")]
        self.assertEqual(windows, [windows[0]] * 4)
        self.assertNotEqual(windows[0], self.told()["ids"])

    def test_smaller_codecs_take_less(self):
        sizes = [self.told("--kv", codec)["cache"]["bytes_per_token"] for codec in ("f64", "f32", "bf16", "int8", "int4")]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertEqual(sizes[1], 2 * 4 * 128 * 4)
        self.assertEqual(sizes[3], 2 * 4 * (128 + 4 * 4))  # a scale a head
        self.assertEqual(self.told("--kv", "int8", "--kv", "0:f32")["cache"]["codecs"], "layers 0 f32, 1-3 int8")

    def test_prompts_that_do_not_fit_together(self):
        path = self.folder / "prompts.jsonl"
        lines = [{"prompt": PROMPT * 2, "n": 40, "seed": i, "temperature": 1} for i in range(8)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        run = lambda *flags: [json.loads(line)["ids"] for line in
                              self.ok("generate", "--prompts", path, *flags).decode().splitlines()]
        self.assertEqual(run("--cache", "paged", "--pool", 340), run())
        code, out, err = self.run_stet("generate", "--prompts", path, "--cache", "paged", "--pool", 90)
        self.assertEqual(code, 1)
        told = [json.loads(line) for line in out.decode().splitlines()]
        self.assertEqual([t["reason"] for t in told], ["no_room"] * 8)
        self.assertIn("prompts.jsonl:1: ", err)
        self.assertIn("pages", told[0]["error"])

    def test_a_prefix_is_found_again(self):
        path = self.folder / "prompts.jsonl"
        texts = [PROMPT, PROMPT, PROMPT + " that came", "JULIET"]
        path.write_text("".join(json.dumps({"prompt": text, "n": 5}) + "\n" for text in texts))
        told = [json.loads(line) for line in self.ok("generate", "--prompts", path, "--batch", 1, "--cache", "paged",
                                                     "--prefix-cache", 10**8, "--audit", 1).decode().splitlines()]
        n = len(PROMPT)
        self.assertEqual([t["cached_tokens"] for t in told][:2], [0, n - 1])
        self.assertGreaterEqual(told[2]["cached_tokens"], n)
        self.assertEqual([t["miss"] for t in told], ["never_seen", None, "never_seen", "never_seen"])
        without = [json.loads(line)["ids"] for line in self.ok("generate", "--prompts", path).decode().splitlines()]
        self.assertEqual([t["ids"] for t in told], without)

    def test_save_and_load(self):
        file = self.folder / "story.kv"
        first = self.told("--save-kv", file)
        self.assertEqual(first["cached_tokens"], 0)
        again = self.told("--load-kv", file, "--cache", "paged", "--page", 32)
        self.assertEqual(again["ids"], first["ids"])
        self.assertEqual(again["cached_tokens"], first["prompt_tokens"] - 1)
        told = self.json("cache", file, "--check", "--json")
        self.assertEqual(told["bytes"], file.stat().st_size)
        self.assertEqual(told["checked"], True)
        self.assertEqual([len(s["tokens"]) for s in told["sequences"]], [first["prompt_tokens"] + 29])
        self.assertEqual({layer["k"] for layer in told["layers"]}, {"f32"})
        text = self.ok("cache", file).decode()
        self.assertIn("layer_norm_epsilon=", text)
        self.fails(1, ["generate", PROMPT, "--load-kv", file, "--kv", "int8"], "story.kv", "f32 in the file, int8")
        self.assertEqual(self.told("--load-kv", file, "--kv", "int8", "--reencode")["cached_tokens"], len(PROMPT) - 1)

    def test_files_that_are_not_caches(self):
        file = self.folder / "story.kv"
        self.told("--save-kv", file)
        whole = file.read_bytes()
        bad = self.folder / "bad.kv"
        for name, content in {"empty": b"", "text": b"hello\n" * 100, "cut": whole[:-1], "longer": whole + b"\0",
                              "header": whole[:9] + b"x" + whole[10:]}.items():
            bad.write_bytes(content)
            for args in (["cache", bad], ["generate", PROMPT, "--load-kv", bad]):
                with self.subTest(name=name, command=args[0]):
                    self.fails(1, args, "bad.kv")
        bad.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])  # in the rows
        self.fails(1, ["cache", bad, "--check"], "bad.kv", "layer")
        self.fails(1, ["generate", PROMPT, "--load-kv", bad], "bad.kv", "layer")
        self.fails(1, ["cache", self.folder / "none.kv"], "none.kv")
        self.fails(1, ["cache", self.folder], str(self.folder))
        self.fails(1, ["generate", PROMPT, "--save-kv", self.folder / "no" / "x.kv"], "no folder")
        self.fails(2, ["cache"], "FILE")
        self.fails(2, ["generate", PROMPT, "--reencode"], "--load-kv")

    def test_killed_while_saving_leaves_the_old_file(self):
        file = self.folder / "story.kv"
        model = "random:char,ctx=4000"
        ids = ",".join(str(i % 60) for i in range(3000))
        args = ["generate", "-m", model, "--ids", ids, "-n", 0, "--save-kv", file]
        self.ok(*args)
        old = file.read_bytes()
        began = time.monotonic()
        self.ok(*args)
        seconds = time.monotonic() - began
        for i in range(12):
            process = start(*args)
            time.sleep(seconds * (0.4 + i * 0.06))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            self.assertEqual(file.read_bytes(), old, i)
        self.ok("cache", file, "--check")

    def test_a_bad_target_is_refused_before_the_work(self):
        for target, why in ((self.folder, "regular"), ("/dev/full", "regular"), (self.folder / "no" / "x.kv", "no folder")):
            self.fails(1, ["generate", PROMPT, "--save-kv", target], why)

    def test_saving_keeps_the_files_mode(self):
        file = self.folder / "story.kv"
        file.touch(mode=0o600)
        self.told("--save-kv", file)
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)

    def test_ctrl_c_saves_what_there_is(self):
        file = self.folder / "story.kv"
        args = ["generate", "-m", LONG, "--ids", "1,2,3", "-n", 16000, "--save-kv", file, "--threads", 1]
        process = start(*args)
        seen = b""
        while len(seen) < 100:  # it has begun
            seen += process.stdout.read(100)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        self.assertEqual(process.returncode, 130, err)
        tokens = len(self.json("cache", file, "--check", "--json")["sequences"][0]["tokens"])
        self.assertGreater(tokens, 3)
        # Before anything is there, an old file stays.
        old = file.read_bytes()
        for delay in (0, 0.01, 0.02, 0.05):
            process = start(*args[:-1], 1)
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            process.communicate()
            told = self.json("cache", file, "--check", "--json")
            self.assertTrue(file.read_bytes() == old or len(told["sequences"]) == 1, delay)

    def test_a_reader_who_leaves_does_not_stop_the_save(self):
        file = self.folder / "story.kv"
        process = start("generate", "-m", LONG, "--ids", "1,2,3", "-n", 3000, "--save-kv", file)
        process.stdout.read(5)
        process.stdout.close()
        process.stderr.read()
        process.wait()
        self.ok("cache", file, "--check")

    def test_sequences_without_room_are_told_of(self):
        file = self.folder / "many.kv"
        path = self.folder / "prompts.jsonl"
        path.write_text("".join(json.dumps({"prompt": f"{i} {PROMPT}", "n": 3}) + "\n" for i in range(6)))
        self.ok("generate", "--prompts", path, "--cache", "paged", "--save-kv", file)
        self.assertEqual(len(self.json("cache", file, "--json")["sequences"]), 6)
        code, out, err = self.run_stet("generate", "0 " + PROMPT, "-n", 2, "--json", "--load-kv", file)
        self.assertEqual(code, 0)
        self.assertIn("1 of 6 sequences had room", err)
        self.assertEqual(json.loads(out)["miss"], "evicted")
        code, out, err = self.run_stet("generate", PROMPT, "-n", 2, "--prefix-cache", 1, "--save-kv", file)
        self.assertEqual(code, 1)
        self.assertIn("nothing is kept", err)
        self.assertEqual(len(self.json("cache", file, "--json")["sequences"]), 6)

    def test_audits(self):
        file = self.folder / "story.kv"
        self.told("--save-kv", file)
        err = self.run_stet("generate", PROMPT, "-n", 2, "--load-kv", file, "--audit", 1)[2]
        self.assertIn("audit: 1 hits computed anew, 0 different, 0 skipped", err)
        self.fails(2, ["generate", PROMPT, "--audit", 1], "--audit")

    def test_windows_use_no_more_than_is_reserved(self):
        for cache in ("contiguous", "paged"):
            told = self.json("generate", "-m", LONG, "--ids", "1,2", "-n", 500, "--window", 64, "--cache", cache, "--json")
            self.assertLess(told["cache"]["used_bytes"], told["cache"]["bytes_per_token"] * 100)
            self.assertLessEqual(told["cache"]["used_bytes"], told["cache"]["reserved_bytes"])

    def test_dry_run_and_plan(self):
        flags = ["-m", "random:gpt2", "--cache", "paged", "--kv", "int8", "--page", 64]
        dry = self.json("generate", "--dry-run", "--json", *flags)
        plan = self.json("plan", "--json", *flags)
        self.assertEqual(plan["schema"], 1)
        for key in dry.keys() - {"fits"}:
            self.assertEqual(dry[key], plan[key], key)
        self.assertEqual(dry["fits"], True)
        self.assertEqual(plan["peak_bytes"], plan["weight_bytes"] + plan["cache_bytes"] + plan["scratch_bytes"])
        for line in ("int8", "pages of 64", str(plan["cache_bytes"])):
            self.assertIn(line, self.ok("plan", *flags).decode())
        code, out, err = self.run_stet("generate", "--dry-run", "-m", "random:char,ctx=1000000000")
        self.assertEqual(code, 1)
        self.assertIn("may use only", err)
        self.assertIn("peak", out.decode())
        told = self.told()
        self.assertEqual(self.json("plan", "--json")["cache_bytes"], told["cache"]["reserved_bytes"])

    def test_plans_are_what_caches_take(self):
        told = self.json("plan", "--selftest", 100, "--seed", 7, "--json")
        self.assertEqual((told["planned"], told["faults"], told["equal"]), (100, [], True))
        self.assertGreater(told["made"], 50)
        self.assertIn("verdict: plan = usage; 10 plans", self.ok("plan", "--selftest", 10).decode())
        self.fails(2, ["plan", "--selftest", 0], "selftest")

    def test_map(self):
        told = self.told("--cache", "paged", "--cache-map", "--prefix-cache", 10**7)["cache_map"]
        usage = told["usage"]
        self.assertEqual(usage["tokens"], len(PROMPT) + 29)
        self.assertEqual(sum(page["filled"] for page in told["pages"]), usage["tokens"])
        self.assertEqual(len({page["page"] for page in told["pages"]}), len(told["pages"]))
        self.assertEqual(len(told["kept"]), 1)
        self.assertEqual(told["misses"], {"never_seen": 1})
        err = self.run_stet("generate", PROMPT, "-n", 5, "--cache", "paged", "--cache-map")[2]
        self.assertIn("sequence 0", err)
        self.assertTrue(all(line.startswith("stet: ") for line in err.splitlines()), err)


if __name__ == "__main__":
    unittest.main()
