"""stet break and stet limit: what they say is wrong is, and what they say is exact is."""

import array
import json
import unittest

from program import BUNDLED, PLAIN, ProgramTest

BUGS = ["positions-restart", "phase-restart", "square-mask", "right-padding", "left-padding", "naive-slide", "stale-tail",
        "fresh-rows", "full-hit-off-by-one", "quantised-rollback"]


class Break(ProgramTest):
    def test_every_bug_is_caught(self):
        told = self.json("break", "--json")
        self.assertEqual((told["schema"], told["caught"], told["dtype"], told["seed"]), (1, True, "f32", 0))
        self.assertEqual([bug["bug"] for bug in told["bugs"]], BUGS)
        for bug in told["bugs"]:
            name = bug["bug"]
            self.assertTrue(bug["caught"] and bug["sleeps"], name)
            self.assertGreater(bug["pair"]["differing_with"], 0, name)
            self.assertEqual(bug["pair"]["differing_without"], 0, name)
            for asleep in bug["dormant"]:
                self.assertEqual(asleep["differing"], 0, name)
                self.assertGreater(asleep["compared"], 0, name)
            first = bug["first_logit"]
            self.assertEqual([d for d in bug["distance"][: first - 1] if d != 0], [], name)
            self.assertGreater(bug["distance"][first - 1], 0, name)
            right, wrong = bug["right"]["ids"], bug["wrong"]["ids"]
            differ = next((i + 1 for i, (a, b) in enumerate(zip(right, wrong)) if a != b), None)
            self.assertEqual(bug["first_token"], differ, name)
        bugs = {bug["bug"]: bug for bug in told["bugs"]}
        square = bugs["square-mask"]["signature"]
        self.assertEqual((square["wrong_to_first_value"], square["keys"], square["keys_ignored"]), (0, 65, 64))
        self.assertGreater(square["right_to_wrong"], 1)
        self.assertEqual(bugs["naive-slide"]["signature"]["published_percent"], 10)
        self.assertGreater(bugs["positions-restart"]["wrong"]["repetition"], 0.5)
        self.assertLess(bugs["positions-restart"]["right"]["repetition"], 0.2)
        self.assertEqual([name for name, bug in bugs.items() if bug["stand_in"]], ["phase-restart"])

    # An id of the bundled model is a byte.
    def test_text_says_the_same(self):
        told = self.json("break", "square-mask", "--json")["bugs"][0]
        text = self.ok("break", "square-mask").decode()
        for key in ("right", "wrong"):
            self.assertEqual(told[key]["text"].encode(), bytes(told[key]["ids"]))
            self.assertIn('"' + told[key]["text"].replace("\n", "\\n") + '"', text)
        for words in (told["what"], told["cure"], told["pair"]["name"], "|wrong - v0|, layer 0 = 0;", "keys = 65"):
            self.assertIn(words, text)
        self.assertEqual(text.splitlines()[-1], "verdict: 1 bug, every one caught")

    def test_is_deterministic(self):
        for model in (BUNDLED, "random:llama-tiny"):
            flags = ["break", "-m", model, "stale-tail", "naive-slide", "--seed", 5, "--json"]
            self.assertEqual(self.ok(*flags), self.ok(*flags))

    def test_any_model(self):
        for model in (PLAIN, "random:llama-tiny"):
            told = self.json("break", "-m", model, "-n", 4, "--json")
            self.assertTrue(told["caught"], model)
            # Learned positions on the one, phases on the other.
            other = {"phase-restart"} if model == PLAIN else {"positions-restart", "naive-slide"}
            self.assertEqual({bug["bug"] for bug in told["bugs"] if bug["stand_in"]}, other)
            self.assertNotIn("text", [b for b in told["bugs"] if not b["stand_in"]][0]["right"])

    def test_refused(self):
        self.fails(2, ["break", "bit-rot"], "bit-rot", "naive-slide")
        self.fails(2, ["break", "-n", "0"], "-n", "0")
        self.fails(1, ["break", "-m", self.folder / "none"], "none")
        self.fails(1, ["break", "-m", "random:char,ctx=11"], 11, 12)
        with open("/dev/full", "wb") as full:
            self.fails(1, ["break", "square-mask"], "stdout", "No space left", stdout=full)


class Limit(ProgramTest):
    def test_the_four_ways(self):
        told = self.json("limit", "--tries", 1, "--json")
        self.assertEqual((told["schema"], told["limit"], told["context"], told["fitting"]), (1, 128, 128, 127))
        self.assertTrue(told["holds"])
        self.assertEqual([(r["new_tokens"], r["past"], r["cached"], r["published_seconds"]) for r in told["runs"]],
                         [(100, 0, True, 0.1), (100, 0, False, None), (300, 172, True, 3.5), (300, 172, False, 4.2)])
        for run in told["runs"]:
            self.assertEqual(len(run["step_ms"]), run["new_tokens"])
            self.assertAlmostEqual(sum(run["step_ms"]) / 1e3, run["seconds"])
        for exact in (told["recompute"], told["rotary"]):
            self.assertEqual(exact["differing"], 0)
            self.assertGreater(exact["compared"], 0)
        self.assertEqual((told["slide"]["steps"], told["slide"]["published_percent"]), (50, 10))
        self.assertLess(told["slide"]["agreement_percent"], 60)
        self.assertEqual(told["rotary"]["stand_in"], True)
        self.assertLess(told["rotary"]["reserved_bytes"], told["rotary"]["reserved_bytes_masked"])
        self.assertGreater(told["rotary"]["evicted"], 0)

    def test_text(self):
        text = self.ok("limit", "--tries", 1, "--limit", 32, "--lengths", "10,50").decode()
        self.assertIn("a limit of 32 tokens (the context is 128)", text)
        for way in ("stop", "recompute the last window", "no cache at all", "naive slide", "rotary window"):
            self.assertIn("\n" + way, text)
        self.assertNotIn(" 3.5 ", text)

    def test_refused(self):
        self.fails(1, ["limit", "--limit", 129], 129, 128)
        self.fails(1, ["limit", "--limit", 11], 11, 12)
        self.fails(1, ["limit", "-m", self.folder / "none"], "none")
        self.fails(2, ["limit", "--lengths", "10,x"], "--lengths", "x")
        self.fails(2, ["limit", "--lengths", "0"], "--lengths", "0")
        self.fails(2, ["limit", "--lengths", ""], "--lengths")
        with open("/dev/full", "wb") as full:
            self.fails(1, ["limit", "--tries", 1], "stdout", "No space left", stdout=full)


class PastLimit(ProgramTest):
    def test_the_last_window_decides_every_token(self):
        flags = ["generate", "ROMEO:", "-n", 300, "--temperature", 1, "--seed", 3, "--past-limit", "recompute", "--json"]
        told = self.json(*flags)
        self.assertEqual((told["new_tokens"], told["reason"], told["past_limit"]), (300, "length", 177))
        for path in (["--cache", "none"], ["--chunk", 7, "--cache", "paged"], ["--threads", 3]):
            self.assertEqual(self.json(*flags, *path)["ids"], told["ids"], path)
        # Until the limit it is the text that stops there.
        stopped = self.json(*flags[:-3], "--past-limit", "stop", "--json")
        self.assertEqual((stopped["reason"], stopped["ids"]), ("context", told["ids"][:122]))
        self.assertNotIn("past_limit", stopped)

    def test_each_greedy_token_is_the_largest_logit_behind_the_last_128(self):
        told = self.json("generate", "ROMEO:", "-n", 140, "--past-limit", "recompute", "--json")
        text = list(b"ROMEO:") + told["ids"]
        for end in (128, 129, 133, len(text) - 1):
            out = self.ok("logits", "--ids", ",".join(map(str, text[end - 128 : end])))
            row = array.array("f", out[-256 * 4 :])
            self.assertEqual(max(range(256), key=row.__getitem__), text[end], end)

    def test_long_prompts(self):
        prompt = "a" * 300
        self.fails(1, ["generate", prompt, "-n", 5], 300, 128)
        told = self.json("generate", prompt, "-n", 5, "--past-limit", "recompute", "--json")
        self.assertEqual(told["ids"], self.json("generate", "a" * 128, "-n", 5, "--past-limit", "recompute", "--json")["ids"])
        _, _, err = self.run_stet("generate", prompt, "-n", 5, "--past-limit", "recompute")
        self.assertIn("5 of them past the limit, each from the last 128 tokens", err)

    def test_many_prompts(self):
        lines = "".join(json.dumps({"prompt": "a" * n, "n": 40}) + "\n" for n in (3, 120, 200))
        out = self.ok("generate", "--prompts", "-", "--past-limit", "recompute", stdin=lines.encode())
        told = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([(t["reason"], t["past_limit"]) for t in told], [("length", 0), ("length", 31), ("length", 40)])

    def test_refused(self):
        self.fails(2, ["generate", "x", "--past-limit", "slide"], "--past-limit", "stop|recompute", "slide")


if __name__ == "__main__":
    unittest.main()
