#!/usr/bin/env python3
"""Checks that folders include only folders that stand before them, and that heavy headers stay out of the library.

include_order.py [ROOT]   checks a tree and prints each violation as path:line
include_order.py --self   checks that the check finds each kind of violation in small trees made for it
"""

import re
import sys
import tempfile
from pathlib import Path

ORDER = ["core", "console", "formats", "checkpoint_files", "config", "output", "elastic", "hosts", "launch", "rendezvous", "transport", "distributed", "checkpoint",
         "residency", "activations", "training", "data", "sharding", "parallel", "big_model", "run_state", "capture", "xla", "tracking", "profiling",
         "accelerator"]
TORCH_FREE = {"core", "console", "formats", "checkpoint_files", "config", "output", "elastic", "hosts", "launch", "cli"}
HEAVY = {"torch/torch.h", "torch/nn.h", "ATen/ATen.h"}
TORCH = ("torch/", "ATen/", "c10/", "caffe2/")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".hpp", ".cpp", ".cc"}


def folder_of(path, root):
    """The folder in ORDER that a file belongs to, `cli`, `self_test`, or None. A header beside the folders is the umbrella's: the last one."""
    for base in (root / "include" / "accelerate", root / "src"):
        if path.is_relative_to(base):
            parts = path.relative_to(base).parts
            return parts[0] if len(parts) > 1 else ORDER[-1]
    return next((name for name in ("cli", "self_test") if path.is_relative_to(root / name)), None)


def resolve(header, quoted, including, root):
    """The file of this tree that an include names, or None when it is somebody else's."""
    places = [including.parent] if quoted else []
    for base in places + [root / "include", root / "src"]:
        candidate = (base / header).resolve()
        if candidate.is_file():
            return candidate
    return None


def violations_of(including, header, quoted, root):
    mine = folder_of(including, root)
    if header in HEAVY and mine != "cli":
        yield f"includes <{header}>, which costs every file that includes it seconds; use forward declarations and ATen/ops/<op>.h"
    if mine in TORCH_FREE and header.startswith(TORCH):
        yield f"includes <{header}>, and {mine} is free of torch"
    target = resolve(header, quoted, including, root)
    if target is None:
        return
    theirs = folder_of(target, root)
    if mine == "cli":
        if theirs not in TORCH_FREE:
            yield f"includes {header} of {theirs}; cli/ links the torch-free part alone"
    elif mine == "self_test":
        if target.is_relative_to(root / "src"):
            yield f"includes {header}, a private header; self_test/ uses what every program may"
    elif theirs not in ORDER:
        yield f"includes {header} of {theirs}, a folder that has no place in the order"
    elif mine in ORDER and ORDER.index(theirs) > ORDER.index(mine):
        yield f"includes {header}: {theirs} stands after {mine}"
    if target.is_relative_to(root / "src") and including.is_relative_to(root / "include"):
        yield f"includes {header}, a private header, in a public one"


def check_includes(root):
    for base in (root / "include", root / "src", root / "cli", root / "self_test"):
        for path in sorted(p for p in base.rglob("*") if p.suffix in SOURCES):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if match := INCLUDE.match(line):
                    for what in violations_of(path, match[2], match[1] == '"', root):
                        yield f"{path.relative_to(root)}:{number}: {what}"


def check_folders(root):
    """Every folder has its place, and docs/architecture.md has a line for each, lowest first."""
    page = root / "docs" / "architecture.md"
    lines = page.read_text().splitlines() if page.is_file() else []
    last_line, last_name = 0, None
    folders = {p.name for base in (root / "src", root / "include" / "accelerate") if base.is_dir()
               for p in base.iterdir() if p.is_dir() and any(p.iterdir())}
    for name in sorted(folders - set(ORDER)):
        yield f"src/{name}: has no place in the order: {' '.join(ORDER)}"
    for name in (n for n in ORDER if n in folders):
        listed = re.compile(rf"^[\s|*\-\d.]*[`*]*(src/)?{name}/?[`*]*(\s|:|\||$)")
        at = next((i for i, line in enumerate(lines, 1) if listed.match(line)), None)
        if at is None:
            yield f"docs/architecture.md: no line begins with {name}"
        elif at < last_line:
            yield f"docs/architecture.md:{at}: {name} is listed before {last_name}; the lowest folder comes first"
        else:
            last_line, last_name = at, name


def check(root):
    return [*check_includes(root), *check_folders(root)]


GOOD = {
    "include/accelerate/core/error.h": "#include <string>",
    "include/accelerate/accelerate.h": "#include <accelerate/core/error.h>\n#include <accelerate/accelerator/accelerator.h>",
    "include/accelerate/accelerator/accelerator.h": "#include <accelerate/distributed/state.h>",
    "include/accelerate/distributed/state.h": '#include <ATen/core/Tensor.h>\n// #include <torch/torch.h>',
    "src/core/error.cpp": '#include <accelerate/core/error.h>\n#include "core/text.h"',
    "src/core/text.h": "",
    "src/distributed/state.cpp": '#include "peer.h"\n#include "core/text.h"',
    "src/distributed/peer.h": "",
    "src/accelerator/accelerator.cpp": "#include <accelerate/accelerate.h>",
    "cli/main.cpp": '#include <CLI/CLI.hpp>\n#include <accelerate/core/error.h>\n#include "core/text.h"\n#include "table.h"',
    "cli/table.h": "",
    "self_test/main.cpp": '#include <accelerate/accelerate.h>\n#include <torch/optim/sgd.h>\n#include "table.h"',
    "self_test/table.h": "",
    "docs/architecture.md": "# x\n| folder | what |\n|---|---|\n| `core` | a |\n| `distributed` | b |\n| `accelerator` | c |\n",
}
BAD = [
    ("src/core/error.cpp", '#include "distributed/peer.h"', "distributed stands after core"),
    ("src/core/text.h", '#include "../distributed/peer.h"', "distributed stands after core"),
    ("include/accelerate/distributed/state.h", "#include <accelerate/accelerate.h>", "accelerator stands after distributed"),
    ("src/distributed/state.cpp", "#include <torch/torch.h>", "costs every file"),
    ("include/accelerate/accelerator/accelerator.h", "  # include <ATen/ATen.h>", "costs every file"),
    ("src/accelerator/accelerator.cpp", "#include <torch/nn.h>", "costs every file"),
    ("src/core/error.cpp", "#include <c10/core/Device.h>", "core is free of torch"),
    ("src/launch/spawn.cpp", "#include <ATen/core/Tensor.h>", "launch is free of torch"),
    ("cli/main.cpp", '#include "distributed/peer.h"', "torch-free part alone"),
    ("cli/main.cpp", "#include <accelerate/distributed/state.h>", "torch-free part alone"),
    ("self_test/main.cpp", '#include "core/text.h"', "a private header"),
    ("self_test/main.cpp", "#include <torch/torch.h>", "costs every file"),
    ("include/accelerate/core/error.h", '#include "core/text.h"', "in a public one"),
    ("src/utils/misc.cpp", "", "src/utils: has no place"),
    ("src/data/loader.cpp", "", "no line begins with data"),
    ("docs/architecture.md", "- distributed: b\n- core: a\n- accelerator: c\n", "listed before core"),
    ("docs/architecture.md", "- core: a\n- accelerator: c\n", "no line begins with distributed"),
]


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def self_check():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for number, (name, text, expected) in enumerate([("cli/table.h", "", None), *BAD]):
            tree = root / str(number)
            write(tree, {**GOOD, name: text})
            found = check(tree)
            if expected is None and found:
                failures.append(f"a good tree was refused: {found}")
            elif expected is not None and not any(expected in what for what in found):
                failures.append(f"{name} with {text!r} gave {found}, not '{expected}'")
    return failures


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]
    problems = self_check() if argument == "--self" else check(Path(argument).resolve())
    print(*problems or ["include order: no violation"], sep="\n")
    sys.exit(bool(problems))
