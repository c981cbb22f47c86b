"""--report DIR: a folder that has its page exactly when everything is in it, and pages that load and run nothing."""

import csv
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
import unittest
import xml.etree.ElementTree as xml
from html.parser import HTMLParser

from program import LONG, ProgramTest, start

MODEL = ["-m", "random:char,layers=1,width=32,heads=2,ctx=40"]
FLIPS = ["eval", *MODEL, "--flips", "--dtype", "int8"]
NO_CLOSE = {"meta", "br"}


class Page(HTMLParser):
    """Checks that tags are balanced; keeps what the page says and refers to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.refers, self.tags, self.ids = [], [], [], [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in NO_CLOSE:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("href", "src", "xlink:href"):
                self.refers.append(value)
            if name == "id":
                self.ids.append(value)
            assert not name.startswith("on"), name

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        self.words.append(data)


class Report(ProgramTest):
    def setUp(self):
        super().setUp()
        self.ids = self.folder / "ids"
        self.ids.write_text("3 1 4 1 5")
        self.out = self.folder / "a report's folder"

    def flips(self, *args, out=None, **options):
        return self.run_stet(*FLIPS, "--ids", self.ids, "--report", out or self.out, *args, **options)

    def names(self):
        return sorted(p.name for p in self.out.iterdir())

    def csv(self, name):
        with (self.out / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def page(self):
        text = (self.out / "report.html").read_text(encoding="utf-8")
        page = Page(text)
        self.assertEqual(set(page.tags) & {"script", "link", "img", "iframe", "object", "form", "base"}, set())
        for target in page.refers:
            self.assertTrue(target.startswith("#") and target[1:] in page.ids or (self.out / target).is_file(), target)
        self.assertEqual(len(page.ids), len(set(page.ids)), "an id stands twice")
        self.assertNotRegex(text, r"url\(|@import|https?://(?!www\.w3\.org/)")
        return text, "".join(page.words)

    def check_pictures(self, *names):
        for name in names:
            root = xml.parse(self.out / f"{name}.svg").getroot()
            self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
            data = (self.out / f"{name}.png").read_bytes()
            self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
            width, height = (int.from_bytes(data[at:at + 4], "big") for at in (16, 20))
            self.assertTrue(1000 < width < 3000 and 500 < height < 3000, (width, height))

    def test_flips(self):
        code, out, err = self.flips("--json", "--steps", 6)
        self.assertEqual((code, err), (0, f"stet: report: {self.out}/report.html\n"))
        self.assertEqual(self.names(), sorted(["flips.csv", "report.html", "report.json", "weight_distance.data.csv",
                                               "weight_distance.png", "weight_distance.svg"]))
        self.assertEqual((self.out / "report.json").read_bytes(), out)
        told = json.loads(out)
        self.check_pictures("weight_distance")
        rows = self.csv("flips.csv")
        self.assertEqual([float(r["max_logit_distance"]) for r in rows], [r["max_logit_distance"] for r in told["rows"]])
        points = self.csv("weight_distance.data.csv")
        self.assertEqual([float(p["y"]) for p in points], told["rows"][1]["distances"])
        text, words = self.page()
        for fact in ("machine", "build", "model", "command", "date", "--report"):
            self.assertIn(fact, words)
        # The command can be pasted into a shell as it stands.
        command = re.search(r"<dt>command</dt><dd>(.*?)</dd>", text, re.S).group(1)
        for entity, character in (("&#39;", "'"), ("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
            command = command.replace(entity, character)
        told = subprocess.run(["sh", "-c", f"for w in {command}; do printf '%s\\n' \"$w\"; done"], stdout=subprocess.PIPE)
        self.assertEqual(told.stdout.decode().splitlines(),
                         ["stet", *map(str, FLIPS), "--ids", str(self.ids), "--report", str(self.out), "--json",
                          "--steps", "6"])
        self.assertRegex(words, r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
        self.assertIn("equal to the bit", words)
        for part in ("prefers-color-scheme:dark", "@media print", "<meta name=\"viewport\"", "currentColor", "var(--s0)"):
            self.assertIn(part, text)

    def test_bench(self):
        code, out, err = self.run_stet("bench", *MODEL, "--tests", "pp8,tg4", "--batch", "1,2", "-r", 1, "--seed", 7,
                                       "--report", self.out)
        lines = err.splitlines()
        self.assertIn(f"stet: report: {self.out}/report.html", lines)
        self.assertEqual(code, 1 if len(lines) > 1 else 0)  # bounds may be beaten on a disturbed machine
        plots = ["roofline", "decode_by_depth", "bound_by_batch"]
        self.assertEqual(self.names(), sorted(["bench.csv", "report.html", "report.json"] +
                                              [f"{p}.{e}" for p in plots for e in ("svg", "png", "data.csv")]))
        self.check_pictures(*plots)
        told = json.loads((self.out / "report.json").read_text())
        rows = self.csv("bench.csv")
        self.assertEqual([(r["test"], int(r["depth"]), int(r["batch"])) for r in rows],
                         [(r["test"], r["depth"], r["batch"]) for r in told["rows"]])
        text, words = self.page()
        self.assertRegex(text, r"<dt>seed</dt><dd>7</dd>")
        self.assertEqual(text.count("<svg"), 3)

    def test_hostile_model_name(self):
        model = self.folder / "<script>alert('x') &amp;"
        shutil.copytree(os.path.join(os.environ["STET_SOURCE_DIR"], "tests", "golden", "plain"), model)
        code, out, err = self.run_stet("eval", "-m", model, "--flips", "--ids", self.ids, "--steps", 2, "--dtype", "f16",
                                       "--report", self.out)
        self.assertEqual(code, 0, err)
        text, words = self.page()
        self.assertIn(str(model), words)

    def test_without_gnuplot(self):
        empty = self.folder / "empty"
        empty.mkdir()
        code, out, err = self.flips(env=os.environ | {"PATH": str(empty)})
        self.assertEqual(code, 0)
        self.assertRegex(err, r"\Astet: report: [^\n]+\nstet: no plots: gnuplot is not installed[^\n]+\n\Z")
        self.assertEqual(self.names(), ["flips.csv", "report.html", "report.json", "weight_distance.data.csv"])
        text, words = self.page()
        self.assertIn("gnuplot is not installed", words)
        self.assertNotIn("<svg", text)

    def test_wrong_folders(self):
        (self.folder / "file").write_text("x")
        for folder, word in ((self.folder / "file", "Not a directory"), (self.folder / "none" / "x", "No such file"),
                             (self.folder / "file" / "x", "Not a directory")):
            self.fails(1, [*FLIPS, "--ids", self.ids, "--report", folder], folder, word)
            # Before the work: the model is not even looked for.
            self.fails(1, ["bench", "-m", "no/such/model", "--report", folder], folder, word)
        self.assertEqual((self.folder / "file").read_text(), "x")
        self.fails(2, [*FLIPS, "--ids", self.ids, "--report", ""], "--report", "must name a folder")

    def test_a_failed_run_leaves_no_page(self):
        self.assertEqual(self.flips()[0], 0)
        self.assertIn("report.html", self.names())
        code, out, err = self.flips("--steps", 39, "--tokens", 2)
        self.assertEqual(code, 1)
        self.assertRegex(err, r"\Astet: [^\n]*context[^\n]*\n\Z")
        self.assertNotIn("report.html", self.names())

    def test_a_full_disk_leaves_no_page(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
        code, out, err = self.flips(preexec_fn=limit)
        self.assertEqual(code, 1)
        self.assertRegex(err, r"\Astet: [^\n]*File too large\n\Z")
        self.assertNotIn("report.html", self.names())
        self.assertEqual([n for n in self.names() if n.endswith(".tmp")], [])

    def test_interrupted(self):
        process = start("bench", "-m", LONG, "--report", self.out, "--threads", 2)
        self.interrupt(process)
        code, out, err = self.end(process)
        self.assertEqual(code, 130)
        self.assertNotIn("report.html", self.names())

    def test_interrupted_while_drawing(self):
        bin = self.folder / "bin"
        bin.mkdir()
        begun = self.folder / "begun"
        (bin / "gnuplot").write_text(f"#!/bin/sh\necho $$ > '{begun}.new'\nmv '{begun}.new' '{begun}'\nexec sleep 1000\n")
        (bin / "gnuplot").chmod(0o755)
        for command in ([*FLIPS, "--ids", self.ids], ["plan", "-m", "gpt2"]):
            begun.unlink(missing_ok=True)
            process = start(*command, "--report", self.out, env=os.environ | {"PATH": f"{bin}:{os.environ['PATH']}"})
            while not begun.exists() and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            code, out, err = self.end(process)
            self.assertEqual(code, 130, command)
            self.assertRegex(err, r"\Astet: interrupted: [^\n]* has no report\.html\n\Z", command)
            self.assertNotIn("report.html", self.names())
            with self.assertRaises(ProcessLookupError):
                os.kill(int(begun.read_text()), 0)


if __name__ == "__main__":
    unittest.main()
