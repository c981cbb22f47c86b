#!/usr/bin/env python3
"""Checks that every include respects the rooms of docs/architecture.md.

    tools/check_deps.py [--root DIR]     one line a violation; exit 1 if there is any
    tools/check_deps.py --selftest       plants each kind of violation and sees it caught

The rooms are read from the table under "## Rooms". A row is

    | `src/kv/` | what lives there | kernels, core, base | cache.hpp |

that is: the folder, prose, the rooms (and single public headers, as `stet/cache.hpp`) that it may include, and the headers of
include/stet that it implements. A room may include a public header that it, or a room it may include, implements. A room's
own headers are "kv/plan.hpp" too; only an app, which nothing includes, may say "args.hpp".
"""

import argparse
import pathlib
import re
import sys
import tempfile

SUFFIXES = {".hpp", ".cpp", ".h", ".cc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
ROW = re.compile(r"^\|\s*`(src|apps)/(\w+)/`\s*\|")
THIRD_PARTY_OF_PUBLIC = {"tl/expected.hpp"}


class Room:
    def __init__(self, place, name, allowed, public):
        self.folder = f"{place}/{name}"
        self.name = name
        self.rooms = {a for a in allowed if not a.startswith("stet/")}
        self.headers = {a for a in allowed if a.startswith("stet/")}
        self.public = {f"stet/{p}" for p in public}


def words(cell):
    return [w for w in re.split(r"[,\s`]+", cell) if w and w not in ("-", "–", "std")]


def read_rooms(text):
    rooms = {}
    for line in text.splitlines():
        if row := ROW.match(line):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) != 4:
                raise ValueError(f"the table's row for {row[2]} has {len(cells)} cells, not 4")
            rooms[row[2]] = Room(row[1], row[2], words(cells[2]), words(cells[3]))
    if not rooms:
        raise ValueError("no rooms table (rows that begin with | `src/NAME/` |)")
    return rooms


def find_cycle(graph):
    """A cycle as a list that begins and ends with the same node, or None. graph: node -> set of nodes."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        for following in sorted(graph.get(node, ())):
            if cycle := visit(following):
                return cycle
        path.pop()
        done.add(node)
        return None

    for start in sorted(graph):
        if cycle := visit(start):
            return cycle
    return None


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES) if folder.is_dir() else []


def includes(path):
    """(line number, bracket, name) of every include directive."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if found := INCLUDE.match(line):
            yield number, found[1], found[2]


class Checker:
    def __init__(self, root):
        self.root = root
        self.rooms = read_rooms((root / "docs/architecture.md").read_text(encoding="utf-8"))
        self.owner = {header: room.name for room in self.rooms.values() for header in room.public}
        self.violations = []
        self.files = {}  # file -> files of the tree that it includes

    def report(self, where, what):
        self.violations.append(f"{where}: {what}")

    def run(self):
        self.check_table()
        self.check_folders()
        for room in self.rooms.values():
            for path in sources(self.root / room.folder):
                self.check_file(path, lambda *include, room=room: self.check_room_include(room, *include))
        for path in sources(self.root / "include"):
            self.check_file(path, self.check_public_include)
        for path in sources(self.root / "examples"):
            self.check_file(path, self.check_example_include)
        if cycle := find_cycle(self.files):
            self.report(cycle[0], "includes itself: " + " -> ".join(cycle))
        return self.violations

    def check_table(self):
        for room in self.rooms.values():
            for other in sorted(room.rooms - self.rooms.keys()):
                self.report("docs/architecture.md", f"{room.folder} may include '{other}', which is no room")
            for header in sorted(room.headers | room.public):
                if not (self.root / "include" / header).is_file():
                    self.report("docs/architecture.md", f"{room.folder} names include/{header}, which does not exist")
        for path in sources(self.root / "include/stet"):
            if f"stet/{path.name}" not in self.owner:
                self.report("docs/architecture.md", f"no room implements include/stet/{path.name}")
        if cycle := find_cycle({room.name: room.rooms for room in self.rooms.values()}):
            self.report("docs/architecture.md", "rooms in a circle: " + " -> ".join(cycle))

    def check_folders(self):
        for place in ("src", "apps"):
            base = self.root / place
            for entry in sorted(base.iterdir()) if base.is_dir() else ():
                known = entry.name in self.rooms and self.rooms[entry.name].folder == f"{place}/{entry.name}"
                if entry.is_dir() and not known:
                    self.report(f"{place}/{entry.name}", "not a room of docs/architecture.md")
                elif entry.suffix in SUFFIXES:
                    self.report(f"{place}/{entry.name}", "lies outside every room")
        for room in self.rooms.values():
            if not (self.root / room.folder).is_dir():
                self.report("docs/architecture.md", f"{room.folder} does not exist")

    def check_file(self, path, rule):
        relative = path.relative_to(self.root).as_posix()
        edges = self.files.setdefault(relative, set())
        for number, bracket, name in includes(path):
            for place in (path.parent, *(self.root / p for p in ("include", "src", "apps"))):
                if bracket == '"' and (place / name).is_file():
                    edges.add((place / name).resolve().relative_to(self.root.resolve()).as_posix())
                    break
            rule(f"{relative}:{number}", bracket, name)

    def check_room_include(self, room, where, bracket, name):
        first = name.split("/")[0]
        if first == "stet" and "/" in name:
            self.check_public_use(room, where, name)
        elif bracket == "<":
            if first in self.rooms and "/" in name:
                self.report(where, f'<{name}>: a room is included as "room/file"')
            return
        elif room.folder.startswith("apps/") and (self.root / room.folder / name).is_file():
            return
        elif first not in self.rooms or "/" not in name:
            self.report(where, f'"{name}": a path starts at a room of src/ or apps/, or at stet/; a library goes in <>')
        elif first != room.name and first not in room.rooms:
            self.report(where, f'"{name}": {room.name} may not include {first}')
        elif not (self.root / self.rooms[first].folder / name.partition("/")[2]).is_file():
            self.report(where, f'"{name}": no such file in {self.rooms[first].folder}')
        if bracket == "<":
            self.report(where, f'<{name}>: inside the tree it is "{name}"')

    def check_public_use(self, room, where, name):
        owner = self.owner.get(name)
        if owner is None:
            self.report(where, f'"{name}": no such public header')
        elif owner != room.name and owner not in room.rooms and name not in room.headers:
            self.report(where, f'"{name}": {room.name} may not include {owner}, which implements it')

    def check_public_include(self, where, bracket, name):
        if bracket == "<" and (name in THIRD_PARTY_OF_PUBLIC or re.fullmatch(r"[a-z_0-9]+", name)):
            return
        if bracket == '"' and name in self.owner:
            return
        self.report(where, f"{name}: a public header includes the standard library, tl/expected.hpp and stet/ only")

    def check_example_include(self, where, bracket, name):
        if not (name in self.owner or (bracket == "<" and re.fullmatch(r"[a-z_0-9]+", name))):
            self.report(where, f"{name}: an example includes the standard library and stet/ only")


GOOD_TREE = {
    "docs/architecture.md": "| room | holds | may include | implements |\n|---|---|---|---|\n"
                            "| `src/base/` | x | std | result.hpp |\n"
                            "| `src/kv/` | x | base | cache.hpp |\n"
                            "| `src/model/` | x | base, `stet/cache.hpp` | - |\n"
                            "| `src/engine/` | x | model, kv, base | engine.hpp |\n"
                            "| `apps/cli/` | x | engine, base | - |\n",
    "include/stet/result.hpp": "#include <string>\n#include <tl/expected.hpp>\n",
    "include/stet/cache.hpp": '#include <cstddef>\n#include "stet/result.hpp"\n',
    "include/stet/engine.hpp": '#include "stet/cache.hpp"\n',
    "src/base/file.hpp": '#include <unistd.h>\n#include "stet/result.hpp"\n',
    "src/kv/plan.cpp": '#include "kv/plan.hpp"\n#include "base/file.hpp"\n#include <fmt/core.h>\n',
    "src/kv/plan.hpp": '#include "stet/cache.hpp"\n',
    "src/model/gpt2.cpp": '#include "base/file.hpp"\n#include "stet/cache.hpp"\n',
    "src/engine/engine.cpp": '#include "kv/plan.hpp"\n#include "stet/engine.hpp"\n',
    "apps/cli/main.cpp": '#include "cli/args.hpp"\n#include "stet/engine.hpp"\n#include <CLI/CLI.hpp>\n',
    "apps/cli/args.hpp": '#include "more.hpp"\n',
    "apps/cli/more.hpp": "",
    "examples/generate.cpp": '#include <iostream>\n#include "stet/engine.hpp"\n',
}

# (what is planted, the file, its whole new text or a text to append, a part of the message that must appear)
PLANTED = [
    ("an upward include", "src/kv/plan.cpp", '+#include "engine/engine.hpp"\n', "kv may not include engine"),
    ("an upward include of a public header", "src/kv/plan.hpp", '+#include "stet/engine.hpp"\n', "which implements it"),
    ("a sideways include", "src/model/gpt2.cpp", '+#include "kv/plan.hpp"\n', "model may not include kv"),
    ("an include from a room into apps", "src/base/file.hpp", '+#include "cli/args.hpp"\n', "base may not include cli"),
    ("an unknown room's folder", "src/extra/a.cpp", "", "not a room"),
    ("an include of an unknown room", "src/kv/plan.cpp", '+#include "extra/a.hpp"\n', "starts at a room"),
    ("a file outside every room", "src/stray.cpp", "", "outside every room"),
    ("a path that starts in the own folder", "src/kv/plan.cpp", '+#include "plan.hpp"\n', "starts at a room"),
    ("a path that climbs", "src/kv/plan.cpp", '+#include "../base/file.hpp"\n', "starts at a room"),
    ("a room in angle brackets", "src/kv/plan.cpp", "+#include <base/file.hpp>\n", 'as "room/file"'),
    ("a public header in angle brackets", "src/kv/plan.cpp", "+#include <stet/cache.hpp>\n", "inside the tree"),
    ("a file that does not exist", "src/kv/plan.cpp", '+#include "base/gone.hpp"\n', "no such file"),
    ("a public header with a library", "include/stet/cache.hpp", "+#include <fmt/core.h>\n", "a public header includes"),
    ("a public header with a system header", "include/stet/cache.hpp", "+#include <unistd.h>\n", "a public header includes"),
    ("a public header with a room", "include/stet/cache.hpp", '+#include "kv/plan.hpp"\n', "a public header includes"),
    ("a public header that no room implements", "include/stet/more.hpp", "", "no room implements"),
    ("an example that knows a room", "examples/generate.cpp", '+#include "kv/plan.hpp"\n', "an example includes"),
    ("two headers in a circle", "include/stet/result.hpp", '+#include "stet/cache.hpp"\n', "includes itself"),
    ("two headers of an app in a circle", "apps/cli/more.hpp", '+#include "args.hpp"\n', "includes itself"),
    ("an app's include that is nowhere", "apps/cli/more.hpp", '+#include "gone.hpp"\n', "starts at a room"),
    ("rooms in a circle", "docs/architecture.md", "+| `src/low/` | x | high | - |\n| `src/high/` | x | low | - |\n", "in a circle"),
    ("a row that names no room", "docs/architecture.md", "+| `src/low/` | x | nothing | - |\n", "which is no room"),
    ("a room without a folder", "docs/architecture.md", "+| `src/low/` | x | base | - |\n", "does not exist"),
    ("a row with a cell too few", "docs/architecture.md", "+| `src/low/` | x | base |\n", "has 3 cells"),
    ("no table at all", "docs/architecture.md", "nothing here\n", "no rooms table"),
]


def check(root):
    try:
        return Checker(root).run()
    except (OSError, ValueError) as error:
        return [f"docs/architecture.md: {error}"]


def check_planted(file=None, text=""):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, content in GOOD_TREE.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        if file:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(GOOD_TREE[file] + text[1:] if text.startswith("+") else text)
        return check(root)


def selftest():
    failures = [f"a good tree is refused: {v}" for v in check_planted()]
    for what, file, text, expected in PLANTED:
        found = check_planted(file, text)
        if not any(expected in violation for violation in found):
            failures.append(f"{what} was not caught; found {found}")
    print("\n".join(failures) or f"{len(PLANTED)} planted violations caught")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--selftest", action="store_true")
    arguments = parser.parse_args()
    if arguments.selftest:
        return selftest()
    violations = check(arguments.root)
    print("\n".join(violations) or "every include respects the rooms")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
