"""stet logits: the array, read by the rules of NumPy's format, against logits that PyTorch made (tests/golden)."""

import ast
import json
import os
import resource
import stat
import struct
import unittest

from program import BUNDLED, PLAIN, ProgramTest

GOLDEN = json.loads((PLAIN / "golden.json").read_text())
IDS = ",".join(map(str, GOLDEN["ids"]))


def read_npy(data):
    """(type, rows) of a version 1.0 file."""
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    (length,) = struct.unpack("<H", data[8:10])
    assert (10 + length) % 64 == 0 and data[9 + length : 10 + length] == b"\n"
    header = ast.literal_eval(data[10 : 10 + length].decode("latin1"))
    assert set(header) == {"descr", "fortran_order", "shape"} and header["fortran_order"] is False
    rows, columns = header["shape"]
    values = struct.unpack("<%d%s" % (rows * columns, {"<f4": "f", "<f8": "d"}[header["descr"]]), data[10 + length :])
    return header["descr"], [values[r * columns : (r + 1) * columns] for r in range(rows)]


class LogitsFile(ProgramTest):
    def test_values_of_an_independent_implementation(self):
        largest = max(abs(x) for row in GOLDEN["logits"] for x in row)
        for dtype, descr, bound in (("f64", "<f8", 2e-14), ("f32", "<f4", 1e-5)):
            got, rows = read_npy(self.ok("logits", "-m", PLAIN, "--ids", IDS, "--dtype", dtype))
            self.assertEqual(got, descr)
            self.assertEqual([len(row) for row in rows], [len(row) for row in GOLDEN["logits"]])
            worst = max(abs(a - b) for x, y in zip(rows, GOLDEN["logits"]) for a, b in zip(x, y))
            self.assertLessEqual(worst, bound * largest, dtype)

    def test_text_and_paths(self):
        base = self.ok("logits", "ROMEO:")
        self.assertEqual(len(read_npy(base)[1]), 6)
        for flags in (["--cache", "none"], ["--chunk", 1], ["--chunk", 4], ["--threads", 1], ["-o", "/dev/stdout"]):
            self.assertEqual(self.ok("logits", "ROMEO:", *flags), base, flags)
        self.assertEqual(self.ok("logits", stdin=b"ROMEO:"), base)
        start = json.loads((BUNDLED / "config.json").read_text())["bos_token_id"]
        self.assertEqual(self.ok("logits", ""), self.ok("logits", "--ids", start))

    def test_file_appears_complete_with_usual_rights(self):
        path = self.folder / "a.npy"
        code, out, err = self.run_stet("logits", "ROMEO:", "-o", path)
        self.assertEqual((code, out), (0, b""))
        self.assertRegex(err, r"\Astet: 6 x 256 logits[^\n]*a\.npy\n\Z")
        self.assertEqual(path.read_bytes(), self.ok("logits", "ROMEO:"))
        umask = os.umask(0)
        os.umask(umask)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o666 & ~umask)
        self.assertEqual(list(self.folder.iterdir()), [path])

    def test_a_link_stays_a_link(self):
        (self.folder / "link.npy").symlink_to("real.npy")
        self.ok("logits", "A", "-o", self.folder / "link.npy")
        self.assertTrue((self.folder / "link.npy").is_symlink())
        self.assertEqual((self.folder / "real.npy").read_bytes(), self.ok("logits", "A"))

    def test_a_pipe_by_its_path(self):
        self.assertEqual(self.ok("logits", "A", "-o", "/dev/fd/1"), self.ok("logits", "A"))

    def test_full_disk_leaves_what_was_there(self):
        path = self.folder / "a.npy"
        path.write_bytes(b"old")
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        self.fails(1, ["logits", "ROMEO:", "-o", path], "a.npy", preexec_fn=limit)
        self.assertEqual(path.read_bytes(), b"old")
        self.assertEqual(list(self.folder.iterdir()), [path])
        self.fails(1, ["logits", "ROMEO:", "-o", "/dev/full"], "/dev/full", "No space left")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))

    def test_refused(self):
        self.fails(1, ["logits", "A", "-o", self.folder / "no" / "a.npy"], "a.npy")
        self.fails(1, ["logits", "A", "-o", self.folder], self.folder)
        self.fails(1, ["logits", "-m", PLAIN, "--ids", IDS + ",1"], 13, 12)
        self.fails(1, ["logits", "-m", PLAIN, "--ids", "1,23"], 23)
        self.fails(1, ["logits", "-m", PLAIN, "text"], "tokenizer")


if __name__ == "__main__":
    unittest.main()
