#!/usr/bin/env python3
"""Holds Stet's tokenizer to tokenizers that are not its own, on the same GPT-2 vocabulary: tiktoken (with GPT-2's pattern in
PyPI's `regex`, and in tiktoken's own engine) and Hugging Face's tokenizers.

    python3 -m venv venv && venv/bin/pip install tiktoken tokenizers regex
    venv/bin/python tools/reference/tokenizer_compare.py --program build/release/tests/text/tokenize_lines

Compared are random strings (all planes, combining marks, odd spaces, contractions, long runs, invalid bytes) and every code
point. The program also checks that each string comes back from its ids, at once and streamed.

Invalid bytes: tiktoken and tokenizers take text only. The reference for them is openai/gpt-2's own way with text that Python
decoded with errors="surrogateescape": `regex` cuts it, each piece is encoded back to bytes, tiktoken merges its bytes.

Unicode versions differ: a letter that was assigned after the version of the program's PCRE2 is no letter there. Code points
for which this version and `regex` disagree are left out; the number is printed.

One line a check: ok or FAIL, and the first strings that differ. Exit status: 0 if nothing failed, 1 if something did, 77 if the
packages or the vocabulary are missing (CTest's word for skipped). `--plant` spoils one id of each check, which must then fail.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import unicodedata

try:
    import regex
    import tiktoken
    import tokenizers
except ImportError as error:
    print(f"tokenizer_compare: skipped, {error} (from PyPI: tiktoken tokenizers regex)", file=sys.stderr)
    sys.exit(77)

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# White space, and what only some engines count as such.
SPACES = [0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x1F, 0x20, 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x2010),
          0x2028, 0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF]
WORDS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "’s", "the", "don't", "I'll", "naïve", "Straße", "1234", "½",
         "Ⅷ", "٣", "क्षि", "漢字", "한국어", "👩‍👩‍👧", "🇩🇪", "e\u0301", "<|endoftext|>", "\r\n", "\0", "--", "...", "_", "ﬁ"]
INVALID = [b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xe2\x82", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf",
           b"\xf0\x9f\x98", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5", b"\xfe", b"\xff", b"\xff\xff\xff"]


def byte_letters():
    """GPT-2's letter of each byte (bytes_to_unicode)."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {b: chr(b) for b in own} | {b: chr(256 + i) for i, b in enumerate(others)}


class References:
    def __init__(self, folder):
        vocab, merges = os.path.join(folder, "encoder.json"), os.path.join(folder, "vocab.bpe")
        bytes_of = {letter: byte for byte, letter in byte_letters().items()}
        with open(vocab, encoding="utf-8") as file:
            ids = json.load(file)
        ranks = {bytes(bytes_of[c] for c in token): i for token, i in ids.items() if token != "<|endoftext|>"}
        self.tiktoken = tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                                          special_tokens={"<|endoftext|>": ids["<|endoftext|>"]})
        self.tokenizers = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab, merges))
        self.tokenizers.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.pattern = regex.compile(PATTERN)

    def ids(self, data, name):
        """None where the reference takes no such bytes."""
        if name == "regex + tiktoken":
            pieces = self.pattern.findall(data.decode("utf-8", "surrogateescape"))
            pieces = [piece.encode("utf-8", "surrogateescape") for piece in pieces]
            return [i for piece in pieces for i in self.tiktoken._encode_single_piece(piece)]
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if name == "tiktoken":
            return self.tiktoken.encode_ordinary(text)
        return self.tokenizers.encode(text).ids


NAMES = ["regex + tiktoken", "tiktoken", "tokenizers"]


def comparable(version):
    """The code points whose class is the same in Unicode `version` and in `regex`."""
    if unicodedata.unidata_version == version:
        category = unicodedata.category
    else:
        # Another Python: what was assigned in Unicode 3.2 is old enough for every version to agree.
        def category(c):
            return unicodedata.category(c) if unicodedata.ucd_3_2_0.category(c) != "Cn" else "?"
    letter, digit = regex.compile(r"\p{L}"), regex.compile(r"\p{N}")
    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    agree = [c for c in chars if (kind := category(c)) != "?"
             and bool(letter.match(c)) == (kind[0] == "L") and bool(digit.match(c)) == (kind[0] == "N")]
    return agree, len(chars) - len(agree)


def random_strings(count, chars, rng):
    """Strings of one to forty parts, each from one of several kinds of text."""
    planes = [[c for c in chars if ord(c) >> 16 == plane] for plane in range(17)]
    planes = [plane for plane in planes if plane]
    of_class = {k: [c for c in chars if unicodedata.category(c)[0] == k] for k in "LNMPSZ"}
    sources = [
        lambda: rng.choice(WORDS).encode(),
        lambda: chr(rng.choice(SPACES)).encode(),
        lambda: b" " * rng.randint(1, 5),
        lambda: rng.choice(rng.choice(planes)).encode(),
        lambda: rng.choice(of_class[rng.choice("LNMPSZ")]).encode(),
        lambda: (rng.choice(of_class["L"]) + "".join(rng.choices(of_class["M"], k=rng.randint(1, 4)))).encode(),
        lambda: "".join(chr(rng.randint(0x20, 0x7E)) for _ in range(rng.randint(1, 12))).encode(),
        lambda: (rng.choice(WORDS) * rng.randint(2, 30)).encode(),
        lambda: chr(rng.randint(0, 0x24F)).encode(),
        lambda: rng.choice(INVALID),
        lambda: rng.randbytes(rng.randint(1, 6)),
    ]
    valid = len(sources) - 2
    allowed = set(chars)
    strings = []
    while len(strings) < count:
        kinds = rng.sample(sources[:valid], rng.randint(1, 4))
        if rng.random() < 0.3:
            kinds += sources[valid:]
        data = b"".join(rng.choice(kinds)() for _ in range(rng.randint(1, 40)))
        if all(c in allowed for c in data.decode("utf-8", "ignore")):
            strings.append(data)
    return strings


def code_point_strings(chars):
    """Every code point after a letter, a digit, a mark and a space, and before a letter; many in one string."""
    return ["".join(f"a{c}1{c}!{c} {c}b" for c in chars[i:i + 64]).encode() for i in range(0, len(chars), 64)]


def run(program, folder, strings):
    lines = "".join(data.hex() + "\n" for data in strings)
    done = subprocess.run([program, folder], input=lines, capture_output=True, text=True, timeout=3600)
    if done.returncode != 0:
        sys.exit(f"tokenizer_compare: {program}: exit status {done.returncode}: {done.stderr.strip()}")
    version, *answers = done.stdout.splitlines()
    return version.removeprefix("unicode "), [[int(i) for i in line.split()] for line in answers]


def check(what, strings, got, references, name):
    compared = differing = 0
    for data, ids in zip(strings, got, strict=True):
        expected = references.ids(data, name)
        if expected is None:
            continue
        compared += 1
        if ids != expected:
            differing += 1
            if differing <= 3:
                print(f"     {data!r}\n       expected {expected}\n       got      {ids}")
    ok = compared > 0 and differing == 0
    print(f"{'ok  ' if ok else 'FAIL'} {what}, {name}: {compared} strings, {differing} differing")
    return ok


def main():
    parser = argparse.ArgumentParser(description="Compares Stet's tokenizer with tiktoken and tokenizers.")
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/tests/text/tokenize_lines"))
    parser.add_argument("--folder", default=os.path.join(ROOT, "../shared/data/gpt2-tokenizer"))
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", action="store_true", help="spoil one id of each check: all must fail")
    args = parser.parse_args()
    if not os.path.isfile(os.path.join(args.folder, "vocab.bpe")):
        print(f"tokenizer_compare: skipped, no vocabulary in {args.folder}", file=sys.stderr)
        return 77

    references = References(args.folder)
    version, _ = run(args.program, args.folder, [])
    chars, left_out = comparable(version)
    print(f"tiktoken {tiktoken.__version__}, tokenizers {tokenizers.__version__}, regex {regex.__version__}; the program's "
          f"PCRE2 has Unicode {version}; {left_out} code points left out")
    ok = True
    for what, strings in (("random strings", random_strings(args.count, chars, random.Random(args.seed))),
                          ("every code point", code_point_strings(chars))):
        _, got = run(args.program, args.folder, strings)
        if args.plant:
            next(ids for data, ids in zip(strings, got) if data.decode("utf-8", "ignore").encode() == data)[0] ^= 1
        for name in NAMES:
            ok = check(what, strings, got, references, name) and ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
