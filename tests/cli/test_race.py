"""stet race: bits, counts and refusals; never how fast."""

import json
import unittest

from program import BUNDLED, LONG, ProgramTest, start

FORMS = ["at_once", "by_rows", "growing", "contiguous", "paged"]


class Race(ProgramTest):
    def test_all_forms_give_the_same_bits_and_ids(self):
        result = self.json("race", "--prompt", "3,20", "-n", "12", "--json")
        self.assertTrue(result["equal"])
        self.assertEqual([(r["prompt"], r["form"]) for r in result["rows"]], [(p, f) for p in (3, 20) for f in FORMS])
        for row in result["rows"]:
            self.assertEqual(row["different"], 0)
            self.assertEqual(row["compared"], 0 if row["form"] == "contiguous" else 12)
            self.assertEqual(len(row["step_ms"]), 12)
            self.assertAlmostEqual(sum(row["step_ms"]), row["total_ms"], places=6)
            self.assertFalse(row["estimated"])
            self.assertEqual(row["cache_bytes"] is None, row["form"] in ("at_once", "by_rows"))

    def test_text_says_the_verdict_and_what_did_not_fit(self):
        out = self.ok("race").decode()
        self.assertIn("do not fit this context of 128", out)
        self.assertIn("All paths produced the same ids and the same bits: 384 steps compared, 0 different.", out)

    def test_every_kth_step_is_an_estimate_and_says_so(self):
        result = self.json("race", "--prompt", "8", "-n", "11", "--every", "4", "--json")
        rows = {r["form"]: r for r in result["rows"]}
        self.assertEqual([i for i, ms in enumerate(rows["by_rows"]["step_ms"]) if ms is not None], [0, 4, 8, 10])
        self.assertTrue(rows["by_rows"]["estimated"])
        self.assertFalse(rows["paged"]["estimated"])
        self.assertIn("~", self.ok("race", "--prompt", "8", "-n", "11", "--every", "4").decode())

    def test_published_512_tokens_from_scratch_run_in_small(self):
        result = self.json("race", "-m", "random:char,ctx=1024", "--prompt", "1", "-n", "40", "--dtype", "f64",
                           "--all-logits", "--json")
        self.assertTrue(result["equal"])

    def test_by_context(self):
        result = self.json("race", "--by", "context", "-m", "random:char,ctx=128", "--dtype", "f64", "--context", "16,128",
                           "--tries", "1", "--trained", BUNDLED, "--json")
        self.assertTrue(result["equal"])
        self.assertEqual(result["compared"], 4)
        self.assertEqual(result["bend_layers"], 768)
        self.assertEqual([r["context"] for r in result["contexts"]], [16, 128])
        self.assertEqual([r["context"] for r in result["breakdown"]], [16, 128])
        self.assertIsNotNone(result["contexts"][0]["trained_ms"])
        self.assertEqual(result["contexts"][1]["published_by_rows_ms"], "17-19")

    def test_breakdown(self):
        result = self.json("race", "--breakdown", "-m", "random:llama-tiny", "--context", "8,64", "--tries", "1", "--json")
        self.assertNotIn("contexts", result)
        for row in result["breakdown"]:
            parts = sum(row[part] for part in ("weights_ms", "attention_ms", "head_ms", "rest_ms"))
            self.assertAlmostEqual(row["attention_ms"] / parts, row["attention_share"], places=9)

    def test_memory(self):
        result = self.json("race", "--memory", "--context", "300", "--json")
        self.assertTrue(result["equal"])
        rows = {r["what"]: r for r in result["rows"]}
        self.assertLess(rows["step_by_rows"]["score_bytes"], rows["step_at_once"]["score_bytes"])
        self.assertEqual(rows["step_cached"]["score_bytes"], 0)

    def test_report(self):
        folder = self.folder / "report"
        self.ok("race", "--prompt", "8", "-n", "6", "--report", folder)
        names = {p.name for p in folder.iterdir()}
        self.assertLessEqual({"report.html", "report.json", "race.csv", "latency-8.svg", "latency-8.png"}, names)
        page = (folder / "report.html").read_text()
        self.assertIn("same bits", page)
        self.assertEqual(len(json.loads((folder / "report.json").read_text())["rows"]), 5)

    def test_refusals(self):
        self.fails(1, ["race", "--prompt", "120", "-n", "9"], "120", "9", "128")
        self.fails(1, ["race", "--by", "context", "--context", "16385"], "16385", "16384")
        self.fails(1, ["race", "--memory", "--context", "1"], "context of 1")
        self.fails(1, ["race", "-m", self.folder / "none"], "none")
        self.fails(1, ["race", "--report", self.folder / "a" / "b"], "a")
        for args in (["--prompt", "0"], ["--prompt", "8,"], ["--every", "0"], ["--by", "layer"], ["--page", "17"],
                     ["--memory", "--by", "context"], ["--context", "8"], ["--memory", "--prompt", "3"],
                     ["--by", "context", "--every", "2"], ["--memory", "--context", "8,16"], ["--breakdown", "--trained", "x"], ["--breakdown", "--memory"],
                     ["--report", ""]):
            self.fails(2, ["race", *args], args[-2] if len(args) > 1 and args[-2].startswith("--") else args[0])

    def test_interrupt_leaves_no_page(self):
        folder = self.folder / "report"
        process = start("race", "-m", LONG, "--report", folder)
        self.interrupt(process)
        process.communicate()
        self.assertEqual(process.returncode, 130)
        self.assertFalse((folder / "report.html").exists())


if __name__ == "__main__":
    unittest.main()
