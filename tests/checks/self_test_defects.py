#!/usr/bin/env python3
"""Checks that the checks of `accelerate test` can fail: puts one defect after the other into the library, and each must be found.

self_test_defects.py --cli CLI --torch FOLDER LIBRARY...   tries them all (a minute or more)
                     --only TEXT                           those whose check contains TEXT

The libraries are the built ones. A defect is compiled into an object of its own, which the linker takes instead of theirs.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The check that must fail, the file that is spoiled, what is replaced by what.
DEFECTS = [
    ("ranks and devices", "src/distributed/process_state.cpp", "{ return facts_->me.local_process_index; }", "{ return 0; }"),
    ("running code on one process", "include/accelerate/accelerator/process_control.h", "return here ? std", "return true ? std"),
    ("letting one process go first", "src/distributed/process_state.cpp",
     'if (is_main_process()) {\n    peers->pass("main', 'if (is_last_process()) {\n    peers->pass("main'),
    ("triggers", "src/accelerator/process_control.cpp", "triggered_ = false;", ""),
    ("splitting between processes", "src/distributed/collectives.cpp", "rank * each + std::min(rank, more)", "rank * each"),
    ("gather", "src/distributed/collectives.cpp", '"gather", where);\n  return output;', '"gather", where);\n  return output.flip(0);'),
    ("reduce", "src/distributed/collectives.cpp", "if (reduction == Reduction::mean) result.div_(peers.size());", ""),
    ("broadcast", "src/distributed/collectives.cpp", "peers.broadcast(sent, from,", "peers.broadcast(sent, 0,"),
    ("padding across processes", "src/distributed/collectives.cpp", "options.pad_first ? length - tensor.size(*dim) : 0", "0"),
    ("exchanging objects", "src/distributed/collectives.cpp", "return state.process_index() == from_process ? mine :",
     "return true ? mine :"),
    ("seeds", "src/distributed/random.cpp", "seed + (options.device_specific ? static_cast<uint64_t>(process_index) : 0)", "seed"),
    ("random states", "src/distributed/random.cpp", "mine.set_state(numbers);", ""),
    ("sharded data", "src/data/sharding.cpp", "if (slot == options.process_index) mine_", "if (slot == 0) mine_"),
    ("dispatched data", "src/data/dispatch_pass.cpp", "process * share, (process + 1) * share", "0, share"),
    ("iterable data", "src/data/sharding.cpp", ".begin = mine * options.process_index, .end = mine * (options.process_index + 1)",
     ".begin = 0, .end = mine"),
    ("data that do not come out even", "src/data/sharding.cpp", "if (options.even_batches) complete_round();", ""),
    ("shuffled data", "src/data/prepared_loader.cpp", "sharing.synchronized = reading.batches->own_generator();", ";"),
    ("batch samplers", "src/data/reading.cpp", "reading.batches = reading.options.batch_sampler;",
     "reading.batches = std::make_shared<SamplerBatches>(std::make_shared<SequentialSampler>(*reading.reader->size()), "
     "BatchOptions{.batch_size = 4});"),
    ("skipping batches", "src/data/sharding.cpp", "for (; skip > 0; --skip)", "for (; skip > 1; --skip)"),
    ("metrics", "src/data/gather_for_metrics.cpp", "if (!gradients.end_of_dataloader() ||", "if (true ||"),
    ("precision", "src/parallel/model.cpp", "if (options_.autocast && outputs) convert_to_fp32(*outputs);", ""),
    ("training against a single process", "src/parallel/model.cpp", "if (is_trained(*module_)) data_parallel_", "if (false) data_parallel_"),
    ("gradient accumulation", "src/training/gradient_state.cpp", "if (options_.sync_with_dataloader && end_of_dataloader())",
     "if (false)"),
    ("learning rate schedules", "src/training/accelerated_scheduler.cpp", "if (rule.split_batches) return step();", ""),
]


class Workshop:
    """A folder in which spoiled copies are compiled and linked."""

    def __init__(self, folder, arguments):
        self.folder, self.arguments = Path(folder), arguments
        self.own = self.folder / "self_test.cpp"
        sources = sorted((ROOT / "self_test").glob("*.cpp"))
        self.own.write_text("".join(f'#include "{source}"\n' for source in sources))

    def compile(self, source, target, include):
        torch = self.arguments.torch / "include"
        command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-w", "-DFMT_HEADER_ONLY", f"-I{include}", f"-I{ROOT / 'src'}",
                   f"-I{ROOT / 'src/distributed/gloo_declarations'}", "-isystem", torch, "-isystem", torch / "torch/csrc/api/include",
                   "-c", source, "-o", target]
        if shutil.which("ccache"):
            command.insert(0, "ccache")
        subprocess.run(command, check=True)
        return target

    def link(self, objects):
        lib = self.arguments.torch / "lib"
        program = self.folder / "program"
        extra = ["-ltorch_cuda", "-lc10_cuda"] if (lib / "libtorch_cuda.so").exists() else []
        subprocess.run([os.environ.get("CXX", "c++"), *objects, *self.arguments.libraries, "-lyaml-cpp", f"-L{lib}", f"-Wl,-rpath,{lib}",
                        "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", *extra, "-lpthread", "-o", program], check=True)
        return program

    def spoiled(self, name, old, new):
        """The program with one text of one file replaced."""
        text = (ROOT / name).read_text()
        if text.count(old) != 1:
            raise SystemExit(f"{name} has {text.count(old)} places that read '{old}': the table of defects is out of date")
        spoiled = self.folder / Path(name).name
        if not name.startswith("include/"):
            spoiled.write_text(text.replace(old, new))
            own = self.folder / "self_test.o"
            if not own.exists():
                self.compile(self.own, own, ROOT / "include")
            return self.link([own, self.compile(spoiled, self.folder / "spoiled.o", ROOT / "include")])
        include = self.folder / "include"
        shutil.copytree(ROOT / "include", include, dirs_exist_ok=True)
        (self.folder / name).write_text(text.replace(old, new))
        program = self.link([self.compile(self.own, self.folder / "spoiled.o", include)])
        shutil.rmtree(include)
        return program

    def output(self, program):
        command = [self.arguments.cli, "launch", "--cpu", "--num_processes", "2", "--main_process_port", "0",
                   "--num_cpu_threads_per_process", "1", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cli", required=True)
    parser.add_argument("--torch", required=True, type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("libraries", nargs="+")
    failures = 0
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(folder, arguments)
        for check, name, old, new in (defect for defect in DEFECTS if arguments.only in defect[0]):
            code, output = workshop.output(workshop.spoiled(name, old, new))
            found = code != 0 and f"The check of {check} failed on rank" in output
            print(f"{'found' if found else 'NOT FOUND'}: a defect in {name}, by the check of {check}", flush=True)
            if not found:
                failures += 1
                print(f"exit code {code}\n{output}", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
