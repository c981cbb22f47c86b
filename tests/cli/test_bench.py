"""stet bench: the shape of what it prints. No speed is asserted: exit 1 on a disturbed machine is a result, too."""

import csv
import io
import json
import unittest

from program import LONG, PLAIN, ProgramTest, start

SMALL = ["bench", "-m", "random:char,layers=1,width=32,heads=2,ctx=40", "--tests", "pp8,tg4", "--batch", "1,2", "-r", 1]
FIELDS = ["test", "dtype", "depth", "batch", "threads", "tok_s", "ms", "bound_ms", "of_bound", "read_gb_s",
          "peak_gflop_s", "gb_s", "gflop_s", "bytes", "operations", "kv"]
CASES = [("pp8", 0, 1), ("pp8", 32, 1), ("tg4", 0, 1), ("tg4", 36, 1), ("tg4", 0, 2), ("tg4", 36, 2)]


class Bench(ProgramTest):
    def ran(self, *args):
        """stdout, when the run itself succeeded: 1 comes with a line for each bound that was beaten, nothing else."""
        code, out, err = self.run_stet(*args)
        for line in err.splitlines():
            self.assertRegex(line, r"% of its bound|more than the peak loop's")
        self.assertEqual(code, 1 if err else 0)
        return out.decode()

    def test_json(self):
        out = self.ran(*SMALL, "--dtype", "f32,int8", "--threads", 2, "--seed", 7, "--json")
        self.assertEqual(out.count("\n"), 1)
        told = json.loads(out)
        self.assertEqual((told["schema"], told["seed"], told["interrupted"]), (1, 7, False))
        self.assertEqual(set(told["machine"]), {"cpu", "target"})
        rows = told["rows"]
        self.assertEqual([(r["dtype"], r["test"], r["depth"], r["batch"]) for r in rows],
                         [(dtype, *case) for dtype in ("f32", "int8") for case in CASES])
        for row in rows:
            self.assertLessEqual(set(FIELDS), set(row))
            self.assertEqual(row["threads"], 2)
            tokens = 8 if row["test"] == "pp8" else row["batch"]
            self.assertAlmostEqual(row["tok_s"] * row["ms"] / 1e3 / tokens, 1, 4)
            self.assertAlmostEqual(row["of_bound"] * row["ms"] / row["bound_ms"], 1, 4)
            self.assertAlmostEqual(row["gb_s"] * row["ms"] * 1e6 / row["bytes"], 1, 4)
            self.assertAlmostEqual(row["gflop_s"] * row["ms"] * 1e6 / row["operations"], 1, 4)
            self.assertGreaterEqual(row["bound_ms"] * 1.001, row["bytes"] / row["read_gb_s"] / 1e6)
            self.assertGreaterEqual(row["bound_ms"] * 1.001, row["operations"] / told["peak_gflop_s"] / 1e6)
        self.assertEqual(told["read_gb_s"], max(r["read_gb_s"] for r in rows))
        self.assertEqual(told["peak_gflop_s"], max(r["peak_gflop_s"] for r in rows))

    def test_csv(self):
        rows = list(csv.DictReader(io.StringIO(self.ran(*SMALL, "--csv"))))
        self.assertEqual([(r["test"], int(r["depth"]), int(r["batch"])) for r in rows], CASES)
        self.assertEqual(list(rows[0])[:len(FIELDS)], FIELDS)
        for row in rows:
            self.assertGreater(float(row["ms"]), 0)

    def test_table(self):
        lines = self.ran(*SMALL, "--threads", 1).splitlines()
        self.assertEqual(len(lines), 2 + len(CASES))
        self.assertRegex(lines[0], r".+, \S+, 1 thread, random:char\S+ in f32, contiguous cache, seed 0$")
        self.assertEqual([tuple(line.split()[i] for i in (0, 3, 4)) for line in lines[2:]],
                         [tuple(map(str, case)) for case in CASES])

    def test_caches_side_by_side(self):
        # 1 layer of 2 heads of 16 dims, keys and values: 256 bytes a token, or 2 x (16 + 4 + 8 + 4) with scales.
        told = json.loads(self.ran(*SMALL, "--kv", "f32", "--kv", "int8,int4", "--json"))
        self.assertEqual(told["cache"], {"mode": "contiguous", "page": None, "window": None, "sinks": None})
        rows = told["rows"]
        self.assertEqual([(r["kv"], r["test"], r["depth"], r["batch"]) for r in rows],
                         [(kv, *case) for case in CASES for kv in ("f32", "int8,int4")])
        for plain, small in zip(rows[::2], rows[1::2]):
            read = plain["depth"] + (8 if plain["test"] == "pp8" else 2.5)  # tg4 reads 1 to 4 more, 2.5 on average
            self.assertAlmostEqual(plain["bytes"] - small["bytes"], plain["batch"] * read * (256 - 64), 6)
        told = json.loads(self.ran(*SMALL, "--window", "8,4", "--json"))
        self.assertEqual((told["cache"]["window"], told["cache"]["sinks"]), (8, 4))
        self.assertLess(told["rows"][-1]["bytes"], rows[-2]["bytes"])

    def test_usage(self):
        for flag, bad in [("--dtype", ""), ("--dtype", "f32,f33"), ("--tests", "pp"), ("--tests", "pp0"),
                          ("--tests", "xx5"), ("--tests", "tg5,"), ("--depth", "-1"), ("--depth", "min"),
                          ("--kv", "int5"), ("--cache", "paper"), ("--page", "8"), ("--batch", "0"), ("--batch", "1,1025"), ("--batch", "2x"), ("--threads", "0"),
                          ("--repeats", "0"), ("--seed", "-1"), ("--model", "")]:
            with self.subTest(flag=flag, bad=bad):
                self.fails(2, ["bench", f"{flag}={bad}"], "-m" if flag == "--model" else flag, "stet bench --help")
        self.fails(2, ["bench", "--csv", "--json"], "--csv", "--json")

    def test_refused(self):
        self.fails(1, ["bench", "-m", PLAIN, "--depth", 12], "depth 12", "context of 12")
        self.fails(1, ["bench", "-m", self.folder / "none"], "none")
        self.fails(1, [*SMALL, "--cache", "none"], "--cache none")
        self.fails(1, [*SMALL, "--page", 32], "paged cache", "contiguous")
        self.fails(1, [*SMALL, "--kv", "1:int8"], "layers 1 to 1", "0 to 0")

    def test_help_has_an_example(self):
        self.assertIn("stet bench --dtype f32,bf16,int8", self.ok("bench", "--help").decode())

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            self.fails(1, SMALL, "stdout", "No space left", stdout=full)

    def interrupted(self, *flags):
        process = start("bench", "-m", LONG, "--tests", "pp1,tg10000", "--batch", 1, "-r", 1, "--depth", 0, "--threads", 9,
                        *flags)
        if "--json" not in flags:
            first = process.stdout.readline()  # the first row is done, the second takes long
        else:
            first = b""
        self.interrupt(process, threads=9)
        code, out, err = self.end(process)
        self.assertEqual(code, 130)
        self.assertRegex(err, r"\Astet: [^\n]*interrupted\n\Z")
        return (first + out).decode()

    def test_ctrl_c(self):
        lines = self.interrupted("--csv").splitlines()
        self.assertEqual([line.split(",")[0] for line in lines], ["test", "pp1"])
        told = json.loads(self.interrupted("--json"))
        self.assertTrue(told["interrupted"])
        self.assertLessEqual(len(told["rows"]), 1)


if __name__ == "__main__":
    unittest.main()
