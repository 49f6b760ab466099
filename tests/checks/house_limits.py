#!/usr/bin/env python3
"""Checks that the house stays readable: sizes of files, functions and folders, lengths of include chains, names of headers, and
that what is private is declared in accelerate::detail.

house_limits.py [ROOT]   checks a tree, prints each violation and a line of figures
house_limits.py --self   checks that the check finds each kind of violation in small trees made for it
"""

import functools
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HEADER_P95, SOURCE_P95, SOURCE_MOST, FUNCTION_P95, FOLDER_MOST, CHAIN_MOST = 200, 400, 500, 40, 45, 8
FOLDERS = ("include", "src", "cli", "self_test")
FOREIGN = "gloo_declarations"  # headers whose names and places another project chose
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
# clang-format puts the closing brace of a function where the line with its opening brace begins.
FUNCTION = re.compile(r"^( *)(?!namespace|class|struct|enum|union|extern|for|if|while|switch|else|do|try|return|\}|//)\S.*[)\w] \{$")

# The line after such a one is part of the same statement.
CONTINUES = re.compile(r"^(?!\s*//|\s*#|\s*template\b|.*\b(public|private|protected):$).*[^;{}\s]$")
# At namespace scope; neither the declaration of a class nor the definition of a member.
PRIVATE_NAME = re.compile(r"(?!(class|struct) \w+(;|::)|//|using namespace|namespace)\w")


def files_of(root):
    return [p for name in FOLDERS for p in sorted((root / name).rglob("*")) if p.suffix in (".h", ".cpp") and FOREIGN not in p.parts]


def p95(lengths):
    return sorted(lengths)[int(0.95 * (len(lengths) - 1))] if lengths else 0


def function_lengths(lines):
    """Lengths of the functions of a file that clang-format has formatted. A lambda is part of its function."""
    begin, indent = None, ""
    for number, line in enumerate(lines):
        if begin is not None:
            if line.startswith(indent + "}"):
                yield number - begin + 1
                begin = None
        elif FUNCTION.match(line):
            begin = number
            while begin > 0 and CONTINUES.search(lines[begin - 1]):  # a signature of several lines
                begin -= 1
            indent = re.match(" *", lines[begin])[0]


def included_by(path, root):
    for line in path.read_text().splitlines():
        if match := INCLUDE.match(line):
            places = [path.parent] if match[1] == '"' else []
            for base in places + [root / "include", root / "src"]:
                candidate = (base / match[2]).resolve()
                if candidate.is_file():
                    yield candidate
                    break


def longest_chain(files, root):
    @functools.lru_cache(maxsize=None)
    def chain_from(path):
        return (path,) + max((chain_from(p) for p in included_by(path, root)), key=len, default=())

    return max((chain_from(p) for p in files), key=len, default=())


def declared_publicly(lines):
    """What a private header declares in namespace accelerate itself, other than classes that are public and defined elsewhere."""
    inside = False
    for line in lines:
        inside = inside or line == "namespace accelerate {"
        if line.startswith("}"):
            inside = False
        elif inside and PRIVATE_NAME.match(line):
            yield line


def check(root):
    files = files_of(root)
    lines = {p: p.read_text().splitlines() for p in files}
    headers = [len(lines[p]) for p in files if p.suffix == ".h"]
    sources = [len(lines[p]) for p in files if p.suffix == ".cpp"]
    functions = [n for p in files for n in function_lengths(lines[p])]
    chain = longest_chain(files, root)
    folders, names = defaultdict(list), defaultdict(list)
    for path in files:
        folders[path.parent].append(path)
        if path.suffix == ".h":
            names[path.name].append(path)

    def at(path):
        return str(path.relative_to(root))

    found = []
    if p95(headers) > HEADER_P95:
        found.append(f"95 % of the headers have up to {p95(headers)} lines, more than {HEADER_P95}")
    if p95(sources) > SOURCE_P95:
        found.append(f"95 % of the sources have up to {p95(sources)} lines, more than {SOURCE_P95}")
    found += [f"{at(p)}: {len(lines[p])} lines, more than {SOURCE_MOST}" for p in files if len(lines[p]) > SOURCE_MOST]
    if p95(functions) > FUNCTION_P95:
        found.append(f"95 % of the functions have up to {p95(functions)} lines, more than {FUNCTION_P95}")
    found += [f"{at(f)}: {len(p)} files, more than {FOLDER_MOST}" for f, p in folders.items() if len(p) > FOLDER_MOST]
    found += [f"{' and '.join(map(at, p))}: two headers with one name" for p in names.values() if len(p) > 1]
    found += [f"{at(p)}: declares in accelerate, not in accelerate::detail: {line}" for p in files
              if p.suffix == ".h" and p.is_relative_to(root / "src") for line in declared_publicly(lines[p])]
    if len(chain) - 1 > CHAIN_MOST:
        found.append(f"a chain of {len(chain) - 1} includes, more than {CHAIN_MOST}: {' > '.join(map(at, chain))}")
    figures = (f"lines, p95: headers {p95(headers)}, sources {p95(sources)} (largest {max(sources, default=0)}), functions {p95(functions)}; "
               f"largest folder {max(map(len, folders.values()), default=0)} files; longest chain {len(chain) - 1} includes")
    return found, figures


def body(lines):
    return "\n".join(["int f() {", *["  g();"] * (lines - 2), "}"])


BAD = [
    ({"src/core/a.h": "\n" * 201}, "of the headers"),
    ({f"src/core/{n}.cpp": "\n" * 401 for n in range(3)}, "of the sources"),
    ({"src/core/a.cpp": "\n" * 501}, "src/core/a.cpp: 501 lines"),
    ({"src/core/a.cpp": body(41)}, "of the functions"),
    ({"src/core/a.cpp": body(41).replace("f()", "f(int a,\n      int b)")}, "of the functions"),
    ({f"src/core/{n}.h": "" for n in range(46)}, "46 files"),
    ({"src/core/a.h": "", "include/accelerate/core/a.h": ""}, "two headers with one name"),
    ({"src/core/a.h": "namespace accelerate {\nclass Known;\nint f();\n}"}, "not in accelerate::detail: int f();"),
    ({"src/core/a.h": "namespace accelerate {\n\nclass Known {\n};\n}"}, "not in accelerate::detail: class Known {"),
    ({f"src/core/h{n}.h": f'#include "core/h{n + 1}.h"' for n in range(9)} | {"src/core/h9.h": ""}, "a chain of 9 includes"),
]
GOOD = {"src/core/a.h": "namespace accelerate {\nclass Public;\nstruct Public::Part {\n};\n}\n\nnamespace accelerate::detail {\nint f();\n}"} | {f"src/core/h{n}.h": f'#include "core/h{n + 1}.h"' for n in range(8)} | {"src/core/h8.h": "", "src/core/a.cpp": body(40)}


def self_check():
    failures = []
    for files, expected in [(GOOD, None), *BAD]:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found, _ = check(root)
            if expected is None and found:
                failures.append(f"a good tree was refused: {found}")
            elif expected is not None and not any(expected in what for what in found):
                failures.append(f"'{expected}' was not found, but {found}")
    return failures, "house limits: each kind of violation is found"


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]
    problems, figures = self_check() if argument == "--self" else check(Path(argument).resolve())
    print(*problems, *([figures] if argument != "--self" or not problems else []), sep="\n")
    sys.exit(bool(problems))
