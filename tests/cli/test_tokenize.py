"""stet tokenize. The bundled vocabulary is the 256 bytes in order."""

import unittest

from program import PLAIN, ProgramTest

TEXT = "Let it stand.\n\u00e9\u2603\U0001f600"


class Tokenize(ProgramTest):
    def test_ids(self):
        self.assertEqual(self.json("tokenize", TEXT, "--json"), list(TEXT.encode()))
        self.assertEqual(self.ok("tokenize", "Hi"), b"72 105\n")
        self.assertEqual(self.ok("tokenize", ""), b"\n")
        self.assertEqual(self.json("tokenize", "--json", stdin=bytes(range(256))), list(range(256)))
        self.assertEqual(self.json("tokenize", "--json", stdin=b""), [])

    def test_decode(self):
        for ids in ("72 105", "72,105", "[72, 105]", " 72\n105\n"):
            self.assertEqual(self.ok("tokenize", "--decode", ids), b"Hi")
        self.assertEqual(self.ok("tokenize", "--decode", stdin=b"72 105\n"), b"Hi")
        self.assertEqual(self.json("tokenize", "--decode", "72 105", "--json"), {"schema": 1, "text": "Hi"})
        told = self.json("tokenize", "--decode", "72 255", "--json")
        self.assertEqual(told, {"schema": 1, "text": "H\ufffd", "text_hex": "48ff"})
        self.assertEqual(self.ok("tokenize", "--decode", ""), b"")

    def test_round_trip(self):
        data = bytes(range(256)) * 40 + TEXT.encode()
        self.assertEqual(self.ok("tokenize", "--decode", stdin=self.ok("tokenize", "--json", stdin=data)), data)

    def test_refused(self):
        self.fails(1, ["tokenize", "--decode", "72 x"], "x", "2")
        self.fails(1, ["tokenize", "--decode", "256"], 256)
        self.fails(1, ["tokenize", "--decode", "--", "-1 2"], "-1")
        self.fails(1, ["tokenize", "x", "-m", PLAIN], "plain")
        self.fails(1, ["tokenize", "x", "-m", "random:gpt2"], "no tokenizer")


if __name__ == "__main__":
    unittest.main()
