"""stet verify: says equal when it is, and can say otherwise."""

import json
import unittest

from program import PLAIN, ProgramTest

SHORT = ["verify", "--tokens", 20, "--dtype", "f32"]


class Verify(ProgramTest):
    def test_equal(self):
        told = self.json(*SHORT, "--json")
        self.assertEqual((told["schema"], told["equal"]), (1, True))
        self.assertGreaterEqual(len(told["pairs"]), 8)
        for pair in told["pairs"]:
            self.assertEqual((pair["dtype"], pair["differing"], pair["max_ulp"], pair["skipped"]), ("f32", 0, 0, False))
            self.assertGreater(pair["compared"], 0)
            self.assertNotEqual(*pair["paths"])
        lines = self.ok(*SHORT).decode().splitlines()
        self.assertEqual(len(lines), len(told["pairs"]) + 1)
        for line, pair in zip(lines, told["pairs"]):
            self.assertTrue(line.startswith("equal "), line)
            self.assertIn(pair["name"], line)
        self.assertRegex(lines[-1], rf"^verdict: equal; {len(told['pairs'])} pairs, \d+ values compared bit by bit, 0 differing$")

    def test_both_types_are_separate_runs(self):
        told = self.json("verify", "--tokens", 6, "--json")
        names = {dtype: [p["name"] for p in told["pairs"] if p["dtype"] == dtype] for dtype in ("f32", "f64")}
        self.assertEqual(names["f32"], names["f64"])
        self.assertTrue(told["equal"])

    def test_a_planted_fault_is_caught_and_named(self):
        for plant in ("flip-bit", "stale-row"):
            code, out, _ = self.run_stet(*SHORT, "--plant", plant, "--json")
            told = json.loads(out)
            self.assertEqual((code, told["equal"]), (1, False), plant)
            caught = [p for p in told["pairs"] if p["differing"] > 0]
            self.assertTrue(caught, plant)
            code, out, _ = self.run_stet(*SHORT, "--plant", plant)
            verdict = out.decode().splitlines()[-1]
            self.assertEqual(code, 1)
            self.assertTrue(verdict.startswith("verdict: NOT equal"), verdict)
            for pair in caught:
                self.assertIn(pair["name"], verdict)

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            self.fails(1, SHORT, "stdout", "No space left", stdout=full)

    def test_refused(self):
        self.fails(1, ["verify", "-m", PLAIN, "--tokens", 13], 13, 12)

    def golden(self, **entry):
        published = json.loads((PLAIN / "golden.json").read_text())
        path = self.folder / "published.json"
        spots = {"ids": published["ids"], "tol": 1e-5, "position2_first5": published["logits"][2][:5]}
        path.write_text(json.dumps({"logits": [spots | entry], "poems": [{"text": "?"}]}))
        return self.run_stet("verify", "-m", PLAIN, "--golden", path, "--json")

    def test_golden(self):
        code, out, _ = self.golden()
        told = json.loads(out)
        self.assertEqual((code, told["schema"], told["passed"]), (0, 1, True))
        self.assertEqual([(g["passed"], g["skipped"]) for g in told["golden"]], [(True, False), (False, True)])
        code, out, _ = self.golden(position2_first5=[0, 0, 0, 0, 0])
        self.assertEqual((code, json.loads(out)["passed"]), (1, False))

    def test_golden_file_that_is_none(self):
        path = self.folder / "bad.json"
        for text in ("", "[", "{}", "[]", '{"logits": [{}]}', '{"greedy": 5}'):
            path.write_text(text)
            code, _, err = self.run_stet("verify", "-m", PLAIN, "--golden", path)
            self.assertEqual(code, 1, text)
            self.assertLessEqual(err.count("\n"), 1)
        self.fails(1, ["verify", "-m", PLAIN, "--golden", self.folder / "none.json"], "none.json")


if __name__ == "__main__":
    unittest.main()
