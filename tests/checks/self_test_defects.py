#!/usr/bin/env python3
"""Checks that the checks of `accelerate test` can fail: puts defects into the library, one for each, and every one must be found.

self_test_defects.py --cli CLI --torch FOLDER LIBRARY...   tries them all (minutes)
                     --only TEXT                           those whose check contains TEXT

Copies of the sources are compiled with their defects, each of which an environment variable of this script switches on, and linked
before the libraries, which are the built ones and stay as they are.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COLLECTIVES, SHARDING = "src/distributed/collectives.cpp", "src/data/sharding.cpp"

# The check that must fail, the file that is spoiled, what is replaced by what. SPOILED is true when the defect is switched on.
DEFECTS = [
    ("ranks and devices", "src/distributed/process_state.cpp", "{ return facts_->me.local_process_index; }",
     "{ return SPOILED ? 0 : facts_->me.local_process_index; }"),
    ("running code on one process", "include/accelerate/accelerator/process_control.h", "return here ? std",
     "return SPOILED || here ? std"),
    ("main_process_first", "src/distributed/process_state.cpp", "const bool first = is_main_process();",
     "const bool first = SPOILED ? is_last_process() : is_main_process();"),
    ("triggers", "src/accelerator/process_control.cpp", "triggered_ = false;", "if (!SPOILED) triggered_ = false;"),
    ("splitting between processes", COLLECTIVES, "std::min(rank, more), stop", "(SPOILED ? 0 : std::min(rank, more)), stop"),
    ("gather", COLLECTIVES, '"gather", where);\n  return output;', '"gather", where);\n  return SPOILED ? output.flip(0) : output;'),
    ("reduce", COLLECTIVES, "if (reduction == Reduction::mean) result", "if (!SPOILED && reduction == Reduction::mean) result"),
    ("broadcast", COLLECTIVES, "peers.broadcast(sent, from,", "peers.broadcast(sent, SPOILED ? 0 : from,"),
    ("padding across processes", COLLECTIVES, "options.pad_first ? length", "!SPOILED && options.pad_first ? length"),
    ("collectives of objects", COLLECTIVES, "return state.process_index() == from_process ? mine :",
     "return SPOILED || state.process_index() == from_process ? mine :"),
    ("seeds", "src/distributed/random.cpp", "(options.device_specific ?", "(!SPOILED && options.device_specific ?"),
    ("random states", "src/distributed/random.cpp", "mine.set_state(numbers);", "if (!SPOILED) mine.set_state(numbers);"),
    ("sharded data", SHARDING, "if (slot == options.process_index) mine_", "if (slot == (SPOILED ? 0 : options.process_index)) mine_"),
    ("dispatched data", "src/data/dispatch_pass.cpp", "process * share, (process + 1) * share",
     "SPOILED ? 0 : process * share, SPOILED ? share : (process + 1) * share"),
    ("iterable data", SHARDING, ".begin = mine * options.process_index", ".begin = SPOILED ? 0 : mine * options.process_index"),
    ("uneven data", SHARDING, "if (options.even_batches) complete", "if (!SPOILED && options.even_batches) complete"),
    ("shuffled data", "src/data/prepared_loader.cpp", "sharing.synchronized = spec.batches->own_generator();",
     "if (!SPOILED) sharing.synchronized = spec.batches->own_generator();"),
    ("batch samplers", "src/data/loader_spec.cpp", "spec.batches = spec.options.batch_sampler;",
     "spec.batches = spec.options.batch_sampler;\n    if (SPOILED) spec.batches = std::make_shared<SamplerBatches>("
     "std::make_shared<SequentialSampler>(*spec.reader->size()), BatchOptions{.batch_size = 4});"),
    ("skipping batches", SHARDING, "for (; skip > 0; --skip)", "for (; skip > (SPOILED ? 1 : 0); --skip)"),
    ("metrics", "src/data/gather_for_metrics.cpp", "if (!loaders.end", "if (SPOILED || !loaders.end"),
    ("precision", "src/parallel/model.cpp", "if (options_.autocast && outputs)", "if (!SPOILED && options_.autocast && outputs)"),
    ("training against a single process", "src/parallel/model.cpp", "if (is_trained(", "if (!SPOILED && is_trained("),
    ("gradient accumulation", "src/training/gradient_state.cpp", "return ends_with_data()", "return (!SPOILED && ends_with_data())"),
    ("learning rate schedules", "src/training/accelerated_scheduler.cpp", "if (rule.split_batches)", "if (!SPOILED && rule.split_batches)"),
    ("checkpoints", "src/run_state/restore.cpp", "[&] { restore_random_states(*loaded.random); }",
     "[&] { if (!SPOILED) restore_random_states(*loaded.random); }"),
]
SWITCH = "ACCELERATE_SPOILED"
# What the sources are built with: ours, and what LibTorch's package asks of those who use c10d.
DEFINITIONS = ["-DFMT_HEADER_ONLY", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO"]


def spoiled_sources():
    """The text of every file in the table with all of its defects, switched off."""
    texts = {}
    for check, name, old, new in DEFECTS:
        text = texts.setdefault(name, "#include <cstdlib>\n#include <string_view>\n" + (ROOT / name).read_text())
        if text.count(old) != 1:
            sys.exit(f"{name} has {text.count(old)} places that read '{old}': the table of defects is out of date")
        on = f'(std::getenv("{SWITCH}") && std::string_view(std::getenv("{SWITCH}")) == "{check}")'
        texts[name] = text.replace(old, new.replace("SPOILED", on))
    return texts


def build(folder, arguments):
    """The test program with all defects."""
    compiler = [*(["ccache"] if shutil.which("ccache") else []), os.environ.get("CXX", "c++")]
    torch, include, objects = arguments.torch / "include", folder / "include", []
    shutil.copytree(ROOT / "include", include)
    own = folder / "self_test.cpp"
    own.write_text("".join(f'#include "{source}"\n' for source in sorted((ROOT / "self_test").glob("*.cpp"))))
    sources = [own]
    for name, text in spoiled_sources().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        if name.startswith("src/"):
            sources.append(folder / name)
    for source in sources:
        objects.append(source.with_suffix(".o"))
        subprocess.run([*compiler, "-std=c++20", "-O0", "-w", *DEFINITIONS, f"-I{include}", f"-I{ROOT / 'src'}",
                        f"-I{ROOT / 'src/distributed/gloo_declarations'}", "-isystem", torch, "-isystem",
                        torch / "torch/csrc/api/include", "-c", source, "-o", objects[-1]], check=True)
    lib = arguments.torch / "lib"
    extra = ["-ltorch_cuda", "-lc10_cuda"] if (lib / "libtorch_cuda.so").exists() else []
    program = folder / "program"
    # Where several sources of the library are one object, it has the sound functions as well: the first ones count.
    subprocess.run([compiler[-1], "-Wl,--allow-multiple-definition", *objects, *arguments.libraries,
                    "-lyaml-cpp", f"-L{lib}", f"-Wl,-rpath,{lib}", "-Wl,--no-as-needed",
                    "-ltorch", "-ltorch_cpu", "-lc10", *extra, "-lpthread", "-o", program], check=True)
    return program


def run(arguments, program, check):
    command = [arguments.cli, "launch", "--cpu", "--num_processes", "2", "--main_process_port", "0", "--num_cpu_threads_per_process", "1",
               program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, SWITCH: check})
    return done.returncode, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cli", required=True)
    parser.add_argument("--torch", required=True, type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("libraries", nargs="+")
    arguments = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder), arguments)
        code, output = run(arguments, program, "none")
        if code != 0:
            sys.exit(f"without a defect it fails too:\n{output}")
        for check, name, _, _ in (defect for defect in DEFECTS if arguments.only in defect[0]):
            code, output = run(arguments, program, check)
            found = code != 0 and f"The check of {check} failed on rank" in output
            print(f"{'found' if found else 'NOT FOUND'}: a defect in {name}, by the check of {check}", flush=True)
            if not found:
                failures += 1
                print(f"exit code {code}\n{output}", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
