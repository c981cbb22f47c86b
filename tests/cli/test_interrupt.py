"""Ctrl-C: the text so far, the summary, exit code 130."""

import json
import os
import signal
import subprocess
import unittest

from program import LONG, SECONDS, ProgramTest, start

TEAM = 9  # threads: more than loading ever starts, so that their number tells that it is over
LONG_PROMPT = ",".join(["1"] * 16000)  # in chunks of 16 its prefill takes a thousand steps


class Interrupt(ProgramTest):
    def test_while_generating(self):
        process = start("generate", "-m", LONG, "--ids", 1, "-n", 10000)
        first = process.stdout.read(1)
        self.interrupt(process)
        code, out, err = self.end(process)
        self.assertEqual(code, 130)
        ids = [int(i) for i in (first + out).split()]
        self.assertRegex(err, rf"\Astet: 1 prompt \+ {len(ids)} new tokens[^\n]+stopped: interrupted\n\Z")
        self.assertLess(len(ids), 10000)

    def test_json(self):
        process = start("generate", "-m", LONG, "--ids", 1, "-n", 10000, "--json", "--threads", TEAM)
        self.interrupt(process, threads=TEAM)
        code, out, err = self.end(process)
        self.assertEqual(code, 130)
        self.assertEqual(json.loads(out)["reason"], "interrupted")

    def test_while_loading(self):
        process = start("generate", "-m", "random:gpt2", "--ids", 1)
        self.interrupt(process)
        code, out, err = self.end(process)
        self.assertEqual((code, out), (130, b""))
        self.assertRegex(err, r"\Astet: [^\n]*interrupted[^\n]*\n\Z")

    def test_while_reading_the_prompt(self):
        process = start("generate", "-m", LONG, "--ids", LONG_PROMPT, "-n", 10, "--chunk", 16, "--threads", TEAM)
        self.interrupt(process, threads=TEAM)
        code, out, err = self.end(process)
        self.assertEqual((code, out), (130, b""))
        self.assertRegex(err, r"\Astet: 16000 prompt \+ 0 new tokens[^\n]*stopped: interrupted\n\Z")

    def test_many_prompts(self):
        path = self.folder / "prompts.jsonl"
        path.write_text('{"ids": [1]}\n{"ids": [2, 3]}\n' * 4)
        process = start("generate", "-m", LONG, "--prompts", path, "-n", 10000, "--batch", 2, "--threads", TEAM)
        self.interrupt(process, threads=TEAM)
        code, out, err = self.end(process)
        self.assertEqual(code, 130)
        self.assertEqual([json.loads(line)["reason"] for line in out.splitlines()], ["interrupted"] * 8)

    def test_while_waiting_for_stdin(self):
        # Many times: a Ctrl-C just before the program waits must not be lost.
        for _ in range(20):
            process = start("generate", stdin=subprocess.PIPE)
            self.interrupt(process)
            self.assertEqual(process.wait(timeout=SECONDS), 130)
            process.stdin.close()
            self.assertRegex(process.stderr.read().decode(), r"\Astet: [^\n]*interrupted\n\Z")
            process.stdout.close()
            process.stderr.close()

    def test_while_opening_a_pipe_that_nobody_writes(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for flags in (["generate", "--file", pipe], ["generate", "--prompts", pipe]):
            process = start(*flags)
            self.interrupt(process)
            code, out, err = self.end(process)
            self.assertEqual((code, out), (130, b""), flags)

    def test_logits_leave_no_file(self):
        process = start("logits", "-m", LONG, "--ids", LONG_PROMPT, "--chunk", 16, "--threads", TEAM, "-o", self.folder / "a.npy")
        self.interrupt(process, threads=TEAM)
        self.assertEqual(self.end(process)[0], 130)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_verify(self):
        process = start("verify", "-m", LONG, "--tokens", 2000)
        self.interrupt(process)
        code, out, err = self.end(process)
        self.assertEqual(code, 130)
        self.assertNotIn(b"verdict", out)

    def test_second_one_kills(self):
        # One step that takes long: the first Ctrl-C waits for it, the second does not.
        process = start("generate", "-m", LONG, "--ids", LONG_PROMPT, "-n", 1, "--chunk", 16000, "--threads", TEAM)
        self.interrupt(process, threads=TEAM)
        process.send_signal(signal.SIGINT)
        self.assertIn(self.end(process)[0], (-signal.SIGINT, 130))


if __name__ == "__main__":
    unittest.main()
