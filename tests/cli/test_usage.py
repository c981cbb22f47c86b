"""What the program refuses before it reads anything, and how it explains itself."""

import os
import unittest

from program import BUNDLED, ProgramTest

COMMANDS = ["generate", "info", "tokenize", "logits", "verify"]


class Usage(ProgramTest):
    def test_every_help_has_an_example(self):
        for command in COMMANDS:
            out = self.ok(command, "--help").decode()
            self.assertIn("Examples:", out)
            self.assertIn(f"stet {command}", out)
        self.assertIn("Exit codes", self.ok("--help").decode())

    def test_version(self):
        self.assertRegex(self.ok("--version").decode(), r"\Astet \d+\.\d+\.\d+ \(.+numerics \d+\)\n\Z")
        version = self.json("--version", "--json")
        self.assertEqual(version["schema"], 1)
        self.assertRegex(version["version"], r"^\d+\.\d+\.\d+$")
        for field in ("compiler", "target"):
            self.assertTrue(version[field], field)
        self.assertIsInstance(version["numerics"], int)

    def test_an_empty_name_is_no_absent_one(self):
        self.fails(2, ["generate", "--prompts", ""], "--prompts", "must name a file")
        self.fails(2, ["verify", "--golden", ""], "--golden", "must name a file")

    def test_commands(self):
        self.fails(2, [], "command")
        self.fails(2, ["generat"], "generat", "--help")
        self.fails(2, ["--json"], "--version")
        self.fails(2, ["--version", "info"], "--version")

    def test_numbers_out_of_range_are_usage_errors(self):
        big = str(2**63)
        for flag, values in {
            "-n": ["-1", "x", "", "1.5", "010x", big, str(2**31)],
            "--temperature": ["nan", "-nan", "-0.1", "inf", "1e999", "hot", ""],
            "--top-k": ["-1", big, "0.5"],
            "--top-p": ["0", "-0.5", "1.0001", "nan", "inf"],
            "--min-p": ["-0.1", "1.1", "nan"],
            "--repetition-penalty": ["0", "-1", "nan", "inf"],
            "--seed": ["-1", str(2**64), "1e3"],
            "--threads": ["0", "-1", "1025", big],
            "--chunk": ["0", "-5", big],
            "--dtype": ["f8", "F32", ""],
            "--cache": ["pages", ""],
            "--page": ["0", "17", "256"],
            "--pool": ["0", "-1"],
            "--kv": ["", "f33", "int8,", "int8,int4,f32", "1-:f32", "-1:f32", "2-1:f32"],
            "--window": ["", "0", "-1", "4,", "4,-1", "4,1,1"],
            "--stop": [""],
            "-m": [""],
            "--ids": ["", "1,x", "-1", "1,,2", str(2**31)],
        }.items():
            for value in values:
                with self.subTest(flag=flag, value=value):
                    words = [flag.lstrip("-").split("-")[0], "see stet generate --help"]
                    arguments = ["generate", flag, value] + ([] if flag == "--ids" else ["x"])
                    self.fails(2, arguments, *words)

    def test_numbers_are_read_as_they_are_written(self):
        # "010" is ten, not an octal eight.
        self.assertEqual(self.json("generate", "x", "-n", "010", "--json")["new_tokens"], 10)
        self.assertEqual(self.json("generate", "x", "-n", "0", "--seed", str(2**64 - 1), "--json")["seed"], 2**64 - 1)

    def test_arguments_that_exclude_each_other(self):
        for arguments in [
            ["generate", "x", "--file", "y"],
            ["generate", "x", "--ids", "1"],
            ["generate", "x", "--prompts", "y"],
            ["generate", "--file", "x", "--prompts", "y"],
            ["generate", "x", "--batch", "2"],
            ["generate", "x", "--echo", "--json"],
            ["generate", "x", "y"],
            ["generate", "x", "--no-such-flag"],
            ["generate", "x", "-n"],
            ["tokenize", "--decode", "--special", "1"],
            ["verify", "--golden", "x", "--tokens", "4"],
        ]:
            with self.subTest(arguments=arguments):
                self.fails(2, arguments, "--help")

    def test_verify_and_info_numbers(self):
        for arguments in [
            ["verify", "--tokens", "0"],
            ["verify", "--tokens", "-3"],
            ["verify", "--budget", "0"],
            ["verify", "--budget", "nan"],
            ["verify", "--plant", "weed"],
            ["info", "--context", "0"],
            ["info", "--batch", "0"],
            ["info", "--batch", "999999999999"],
        ]:
            with self.subTest(arguments=arguments):
                self.fails(2, arguments, arguments[1].lstrip("-"))

    def test_odd_texts_are_only_texts(self):
        for text in ["", "{}", "[]", "[1,2]", "info", "--", "-", "generate", "010", "%%"]:
            with self.subTest(text=text):
                ids = self.json("tokenize", "--json", "--", text)
                self.assertEqual(bytes(ids), text.encode())

    def test_a_model_that_is_not_there(self):
        missing = self.folder / "nothing here"
        for command in (["generate", "x"], ["logits", "x", "-o", self.folder / "a.npy"], ["tokenize", "x"], ["verify"]):
            self.fails(1, [*command, "-m", missing], missing)
        self.fails(1, ["info", missing], missing)
        self.fails(1, ["generate", "x", "-m", self.folder], self.folder)  # a folder without a model
        self.fails(1, ["generate", "x", "-m", "random:no-such"], "no-such")
        self.fails(1, ["generate", "x", "-m", BUNDLED / "config.json"], "config.json")

    def test_names_cannot_steer_the_terminal_or_break_the_line(self):
        err = self.fails(1, ["generate", "x", "-m", "no\n\x1b[31mmodel"])
        self.assertNotIn("\x1b", err)

    def test_closed_standard_files(self):
        # Results that go nowhere are a failure; a missing stdin is an empty one.
        self.fails(1, ["tokenize", "x"], "stdout", stdout=None, preexec_fn=lambda: os.close(1))
        self.assertEqual(self.json("tokenize", "--json", stdin_file=None, preexec_fn=lambda: os.close(0)), [])


if __name__ == "__main__":
    unittest.main()
