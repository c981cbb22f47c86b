"""stet generate --prompts: requests from JSONL, decoded together."""

import json
import unittest

from program import PLAIN, ProgramTest

LINES = [
    {"prompt": "ROMEO:", "n": 30},
    {"prompt": "First Citizen:\nBefore we proceed any further", "id": "b"},
    {"ids": [74, 85, 76, 73, 69, 84, 58], "temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 5, "n": 25, "id": 3},
    {"prompt": "", "temperature": 1, "min_p": 0.05, "repetition_penalty": 1.2},
    {"prompt": "A", "n": 0},
    {"prompt": "x" * 120, "n": 50},
    {"prompt": "KING", "temperature": 1, "stop": ["e", "\n"], "n": 60},
]


class Prompts(ProgramTest):
    def run_lines(self, lines, *flags, **options):
        path = self.folder / "prompts.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        out = self.ok("generate", "--prompts", path, "-n", 20, *flags, **options)
        return [json.loads(line) for line in out.decode().splitlines()]

    @staticmethod
    def result(told):
        return {key: told.get(key) for key in ("text", "ids", "reason", "prompt_tokens", "seed", "sequence", "id")}

    def test_lines_that_the_json_library_would_take_wrongly(self):
        path = self.folder / "bad.jsonl"
        path.write_text('{"prompt": ' + "[" * 200000 + "]" * 200000 + "}\n")  # once a stack overflow
        self.fails(1, ["generate", "--prompts", path], "bad.jsonl:1", "nests deeper")
        path.write_bytes(b'{"prompt": "a", "n": 1}\0garbage\n')
        self.fails(1, ["generate", "--prompts", path], "bad.jsonl:1", "zero byte")

    def test_a_batch_is_the_single_runs(self):
        alone = []
        for i, line in enumerate(LINES):
            alone += [self.result(told) for told in self.run_lines([line | {"sequence": i}])]
        for flags in ([], ["--batch", 1], ["--batch", 3], ["--batch", 100, "--chunk", 5], ["--cache", "none"], ["--json"]):
            together = [self.result(told) for told in self.run_lines(LINES, *flags)]
            self.assertEqual(together, alone, flags)
        self.assertEqual([t["id"] for t in alone], [None, "b", 3, None, None, None, None])
        self.assertEqual([t["reason"] for t in alone[4:]], ["length", "context", "stop_string"])

    def test_the_first_line_is_the_command_line(self):
        for flags in ([], ["--temperature", 0.7, "--seed", 9]):
            single = self.json("generate", "ROMEO:", "-n", 20, "--json", *flags)
            batch = self.run_lines([{"prompt": "ROMEO:"}, {"prompt": "ROMEO:"}], *flags)
            self.assertEqual(self.result(batch[0]), self.result(single))
            # The same seed, but another sequence: other random numbers, if any are drawn.
            self.assertEqual(batch[1]["ids"] == single["ids"], not flags)

    def test_objects(self):
        for told in self.run_lines(LINES):
            self.assertEqual(told["schema"], 1)
            self.assertEqual(len(told["ids"]), told["new_tokens"])
            self.assertGreaterEqual(told["cache"]["reserved_bytes"], told["cache"]["used_bytes"])

    def test_stdin_and_blank_lines(self):
        out = self.ok("generate", "--prompts", "-", "-n", 3, stdin=b'\n{"prompt": "A"}\r\n  \n{"prompt": "B"}')
        self.assertEqual([json.loads(line)["sequence"] for line in out.splitlines()], [0, 1])

    def test_a_bad_line_is_named_before_anything_runs(self):
        path = self.folder / "bad.jsonl"
        for line, word in [
            ('{"prompt": "A"', "not JSON"),
            ("[1]", "object"),
            ("{}", "prompt"),
            ('{"prompt": "A", "ids": [1]}', "either"),
            ('{"prompt": 5}', "prompt"),
            ('{"ids": []}', "ids"),
            ('{"ids": [1, "2"]}', "ids"),
            ('{"ids": [-1]}', "ids"),
            ('{"ids": [4000000000]}', "ids"),
            ('{"ids": [256]}', "256"),
            ('{"prompt": "A", "temprature": 1}', "temprature"),
            ('{"prompt": "A", "n": -1}', '"n"'),
            ('{"prompt": "A", "n": 1.5}', '"n"'),
            ('{"prompt": "A", "n": 99999999999999999999}', '"n"'),
            ('{"prompt": "A", "temperature": -1}', "temperature"),
            ('{"prompt": "A", "temperature": 1e999}', "not JSON"),
            ('{"prompt": "A", "top_p": 0}', "top"),
            ('{"prompt": "A", "min_p": 2}', "min"),
            ('{"prompt": "A", "repetition_penalty": 0}', "penalty"),
            ('{"prompt": "A", "seed": -1}', "seed"),
            ('{"prompt": "A", "stop": "x"}', "stop"),
            ('{"prompt": "A", "stop": [""]}', "stop"),
            ('{"prompt": "A", "id": [1]}', "id"),
            (json.dumps({"prompt": "x" * 128}), 128),
            ("[" * 100000, "not JSON"),
        ]:
            with self.subTest(line=line[:60]):
                path.write_text('{"prompt": "fine"}\n\n' + line + "\n")
                self.fails(1, ["generate", "--prompts", path], f"{path}:3: ", word)
        path.write_bytes(b'{"prompt": "\xff"}\n')
        self.fails(1, ["generate", "--prompts", path], f"{path}:1: ")
        path.write_text("\n")
        self.fails(1, ["generate", "--prompts", path], path)
        self.fails(1, ["generate", "--prompts", self.folder / "none"], "none")
        path.write_text('{"prompt": "A"}')
        self.fails(1, ["generate", "--prompts", path, "-m", PLAIN], f"{path}:1: ", "tokenizer")


if __name__ == "__main__":
    unittest.main()
