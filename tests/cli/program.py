"""Runs the program and judges what it did."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

STET = os.environ["STET_PROGRAM"]
SOURCE = pathlib.Path(os.environ["STET_SOURCE_DIR"])
BUNDLED = SOURCE / "models" / "shakespeare-char"
PLAIN = SOURCE / "tests" / "golden" / "plain"  # no tokenizer, no start token, context 12
LONG = "random:char,ctx=16384"  # no tokenizer; ten thousand tokens take long
SECONDS = 300  # only so that a hang is a failure


def default_interrupt():
    # A shell that started the tests in the background may have made them ignore it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*args, **options):
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0} | options
    return subprocess.Popen([STET, *map(str, args)], preexec_fn=options.pop("preexec_fn", default_interrupt), **options)


class ProgramTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_stet(self, *args, stdin=b"", **options):
        """(exit code, stdout, stderr), the last one as text."""
        if "stdin_file" in options:
            feed = {"stdin": options.pop("stdin_file")}
        else:
            feed = {"input": stdin}
        options = {"stdout": subprocess.PIPE} | options
        done = subprocess.run([STET, *map(str, args)], stderr=subprocess.PIPE, timeout=SECONDS, **feed, **options)
        return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")

    def ok(self, *args, **options):
        """stdout of a run that must succeed."""
        code, out, err = self.run_stet(*args, **options)
        self.assertEqual(code, 0, f"{args}: {err}")
        return out

    def json(self, *args, **options):
        out = self.ok(*args, **options)
        self.assertEqual(out.count(b"\n"), 1, "one result is one line")
        self.assertTrue(out.endswith(b"\n"))
        return json.loads(out.decode("utf-8"))

    def fails(self, code, args, *words, **options):
        """One clear line on stderr that has all the words, nothing on stdout."""
        got, out, err = self.run_stet(*args, **options)
        self.assertEqual(got, code, f"{args}: {err}")
        self.assertEqual(out or b"", b"", args)
        self.assertRegex(err, r"\Astet: [^\n]+\n\Z", args)
        for word in words:
            self.assertIn(str(word), err, args)
        return err

    def interrupt(self, process, threads=1):
        """Ctrl-C, not before the program is ready for it and has that many threads (its team starts after loading)."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            caught = int(next(l for l in status.splitlines() if l.startswith("SigCgt")).split()[1], 16)
            ready = len(os.listdir(f"/proc/{process.pid}/task")) >= threads
            if ready and caught >> (signal.SIGINT - 1) & 1:
                process.send_signal(signal.SIGINT)
                return
            if process.poll() is not None:
                break
            time.sleep(0.01)
        self.fail("the program never waited for Ctrl-C")

    def end(self, process):
        """(exit code, stdout, stderr)"""
        out, err = process.communicate(timeout=SECONDS)
        return process.returncode, out, err.decode("utf-8", "replace")
