"""Where results go: a reader that leaves is the silent end, a device that is full is a failure."""

import os
import pty
import subprocess
import unittest

from program import LONG, STET, ProgramTest, start


class Output(ProgramTest):
    def test_full_device(self):
        for arguments in (["generate", "A", "-n", 3], ["generate", "A", "-n", 3, "--json"], ["tokenize", "A"], ["info"],
                          ["tokenize", "--decode", "65"], ["logits", "A"], ["--version"], ["generate", "--help"]):
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                self.fails(1, arguments, "stdout", "No space left", stdout=full)

    def test_full_device_stops_the_work(self):
        with open("/dev/full", "wb") as full:
            self.fails(1, ["generate", "-m", LONG, "--ids", 1, "-n", 10000], "stdout", stdout=full)

    def test_reader_that_left(self):
        for arguments in (["generate", "A", "-n", 30], ["generate", "A", "-n", 3, "--json"], ["tokenize", "A"], ["info"],
                          ["logits", "A"], ["--version"], ["generate", "--help"]):
            with self.subTest(arguments=arguments):
                process = start(*arguments, stderr=subprocess.PIPE)
                process.stdout.close()
                err = process.stderr.read()
                process.stderr.close()
                self.assertEqual((process.wait(), err), (0, b""))

    def test_verify_without_a_reader_claims_nothing(self):
        process = start("verify", "--tokens", 8)
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        self.assertEqual((process.wait(), err), (1, b""))

    def test_head(self):
        shell = f'set -o pipefail; "{STET}" generate "ROMEO:" -n 100 --temperature 0.8 | head -c 1'
        done = subprocess.run(["bash", "-c", shell], stdin=subprocess.DEVNULL, capture_output=True)
        self.assertEqual((done.returncode, len(done.stdout)), (0, 1))

    def test_summary_has_its_own_line_in_a_shared_log(self):
        log = self.folder / "log"
        with open(log, "wb") as both:
            subprocess.run([STET, "generate", "A", "-n", "4"], stdin=subprocess.DEVNULL, stdout=both, stderr=both, check=True)
        self.assertRegex(log.read_bytes(), rb"\nstet: [^\n]+\n\Z")

    def on_terminal(self, *arguments):
        """What a terminal gets to see, stdin being one too."""
        master, slave = pty.openpty()
        process = start(*arguments, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        seen = b""
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            seen += data
        os.close(master)
        return process.wait(), seen.replace(b"\r\n", b"\n")

    def test_terminal(self):
        # Without a prompt nobody waits for the keyboard: the start token. Control characters are spelled out.
        code, seen = self.on_terminal("generate", "-n", 100, "--temperature", 1000, "--seed", 1)
        self.assertEqual(code, 0)
        self.assertRegex(seen, rb"\\x[01][0-9a-f]")
        self.assertNotIn(b"\x1b", seen.split(b"\nstet: ")[0])
        self.assertRegex(seen, rb"\nstet: 1 prompt \+ 100 new tokens[^\n]+\n\Z")

    def test_terminal_is_no_place_for_an_array(self):
        code, seen = self.on_terminal("logits", "A")
        self.assertEqual(code, 2)
        self.assertIn(b"-o", seen)


if __name__ == "__main__":
    unittest.main()
