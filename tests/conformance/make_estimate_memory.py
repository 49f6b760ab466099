#!/usr/bin/env python3
"""Writes tests/golden/estimate_memory.json: what the real Accelerate prints for models of given sizes.

make_estimate_memory.py > tests/golden/estimate_memory.json
"""

import json
import sys

from accelerate.commands.estimate import create_ascii_table, estimate_training_usage
from accelerate.utils import convert_bytes

HEADERS = ["dtype", "Largest Layer", "Total Size", "Training using Adam"]
DIVISORS = {"float32": 1, "float16": 2, "int8": 4, "int4": 8}


def row_of(dtype, layer, total):
    """A row as estimate_command makes it."""
    usage = max(estimate_training_usage(total, dtype).values())
    if dtype != "float32":
        layer, total = layer / DIVISORS[dtype], total / DIVISORS[dtype]
    return [dtype, convert_bytes(layer), convert_bytes(total), "N/A" if usage == -1 else convert_bytes(usage)]


def case(name, layer, total, dtypes):
    rows = [row_of(dtype, layer, total) for dtype in dtypes]
    return {"name": name, "layer": layer, "total": total, "dtypes": dtypes,
            "table": create_ascii_table(HEADERS, rows, f"Memory Usage for loading `{name}`")}


ALL = list(DIVISORS)
CASES = [case("bert-base-cased", 90669056, 433249280, ALL), case("m", 100, 236, ALL), case("a/b", 48, 1024, ["float16"]),
         case("x" * 60, 5 * 2**40 + 12345678901, 7 * 2**52, ALL), case("x" * 31, 1536, 1000000, ["int8", "float32"]),
         case("x" * 24, 999, 1023, ALL), case("odd", 1047, 3 * 1047, ["int4"])]
json.dump({"cases": CASES}, sys.stdout, indent=1, ensure_ascii=False)
print()
