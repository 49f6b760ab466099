"""Writes tests/golden/pad_input_tensors.json: how many rows accelerate.utils.pad_input_tensors makes of 1 to 20 rows, by the number
of processes. What it adds are zeros behind the rows that were there, which is checked here.

    pip install torch==2.13.0 accelerate==1.15.0
    python3 tests/conformance/make_pad_input_tensors.py tests/golden/pad_input_tensors.json
"""

import json
import sys

import torch
from accelerate.utils import pad_input_tensors


def padded_rows(rows, processes):
    batch = torch.arange(1.0, 2 * rows + 1).view(rows, 2)
    padded = pad_input_tensors({"x": batch}, rows, processes)["x"]
    assert torch.equal(padded[:rows], batch) and not padded[rows:].any()
    return len(padded)


table = {str(processes): [padded_rows(rows, processes) for rows in range(1, 21)] for processes in range(1, 5)}
with open(sys.argv[1], "w") as file:
    file.write(json.dumps({"rows_of_1_to_20_by_processes": table}) + "\n")
