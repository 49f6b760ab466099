#!/usr/bin/env python3
"""Launches under a real Slurm, which this script starts and ends. Needs root, iproute2, slurm-wlm and munge.

slurm.py --cli ACCELERATE --examples FOLDER [--only SCENE]"""

import argparse
import pathlib
import re
import signal
import subprocess
import sys
import time

from slurm_cluster import Slurm, await_true

CPU = ("--cpu", "--num_cpu_threads_per_process", "1")


def trained(text):
    found = re.search("tensors .*", text)
    assert found, f"no result in:\n{text}"
    return found[0]


def expect(done, code, *parts):
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}:\n{done.stdout}"
    for part in parts:
        assert re.search(part, done.stdout), f"'{part}' is not in:\n{done.stdout}"


def on_one_machine(slurm, wishes, processes=4):
    done = slurm.call(wishes.cli, "launch", *CPU, "--num_processes", processes, wishes.example, slurm.folder / "one.safetensors")
    expect(done, 0)
    return trained(done.stdout)


def srun_without_the_launcher(slurm, wishes):
    """srun alone starts the ranks of two nodes: they find each other. With a PMI plug-in they have the variables of MPICH too."""
    one = on_one_machine(slurm, wishes)
    for mpi in ("none", "pmi2"):
        done = slurm.call("srun", f"--mpi={mpi}", "--nodes=2", "--ntasks-per-node=2", wishes.example, "all.safetensors")
        expect(done, 0)
        assert trained(done.stdout) == one, done.stdout


def srun_of_launchers(slurm, wishes):
    """A launcher on each node, without any flag about machines."""
    done = slurm.call("srun", "--nodes=2", wishes.cli, "launch", *CPU, "--nproc_per_node", 2, wishes.example, "all.safetensors")
    expect(done, 0)
    assert trained(done.stdout) == on_one_machine(slurm, wishes), done.stdout


def own_names_may_be_loopback(slurm, wishes):
    """Debian maps the name of a host to 127.0.1.1 on the host itself: ranks still use the interface that leads to the others."""
    files = [slurm.network.files_of(slurm.network.names[host]) / "hosts" for host in range(1, len(slurm.nodes) + 1)]
    before = [file.read_text() for file in files]
    try:
        for host, (file, text) in enumerate(zip(files, before), start=1):
            file.write_text(text.replace(slurm.network.address(host) + " ", "127.0.1.1 "))
        done = slurm.call("srun", "--nodes=2", wishes.cli, "launch", *CPU, "--nproc_per_node", 2, wishes.example, "all.safetensors")
        expect(done, 0)
        assert trained(done.stdout) == on_one_machine(slurm, wishes), done.stdout
        done = slurm.call("srun", "--nodes=2", wishes.cli, "launch", *CPU, "sh", "-c", "echo rank $RANK by $GLOO_SOCKET_IFNAME and $NCCL_SOCKET_IFNAME")
        expect(done, 0, "rank 0 by eth0 and =eth0", "rank 1 by eth0 and =eth0")
    finally:
        for file, text in zip(files, before):
            file.write_text(text)


def the_self_test_passes(slurm, wishes):
    """On two nodes, which share their temporary folder here."""
    done = slurm.call("srun", "--nodes=2", wishes.cli, "test")
    expect(done, 0)


def several_tasks_on_a_node(slurm, wishes):
    """The launcher of each task starts the one process of its task."""
    done = slurm.call("srun", "--nodes=2", "--ntasks-per-node=2", wishes.cli, "launch", *CPU, wishes.example, "all.safetensors")
    expect(done, 0)
    assert trained(done.stdout) == on_one_machine(slurm, wishes), done.stdout
    place = "echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on node $GROUP_RANK of $GROUP_WORLD_SIZE"
    done = slurm.call("srun", "--nodes=2", "--ntasks=3", wishes.cli, "launch", *CPU, "sh", "-c", place)
    expect(done, 0, "rank 0 of 3, 0 of 2 on node 0 of 2", "rank 1 of 3, 1 of 2 on node 0 of 2", "rank 2 of 3, 0 of 1 on node 1 of 2")
    # A restart is one of all tasks, and changes no place.
    fails = "[ $RANK$TORCHELASTIC_RESTART_COUNT = 20 ] && exit 3; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && sleep 600; "
    done = slurm.call("srun", "--nodes=2", "--ntasks=3", wishes.cli, "launch", *CPU, "--max_restarts", 1, "sh", "-c", fails + place)
    expect(done, 0, r"rank 2 failed with exit code 3", "rank 0 of 3, 0 of 2 on node 0 of 2", "rank 1 of 3, 1 of 2 on node 0 of 2",
           "rank 2 of 3, 0 of 1 on node 1 of 2")
    done = slurm.call("srun", "--ntasks=2", "--nodes=1", wishes.cli, "launch", *CPU, "sh", "-c", place)
    expect(done, 0, "rank 0 of 2, 0 of 2 on node 0 of 1", "rank 1 of 2, 1 of 2 on node 0 of 1")
    done = slurm.call("srun", "--nodes=2", "--ntasks-per-node=2", wishes.cli, "launch", *CPU, "--nproc_per_node", 4, "true")
    expect(done, 2, "--nproc_per_node is 4, but Slurm step .* has 2 tasks on this node", "srun --ntasks-per-node=1 accelerate launch --nproc_per_node 4")


def a_failing_rank_ends_the_step(slurm, wishes):
    """On all nodes, with its exit code, and it is named."""
    began = time.monotonic()
    done = slurm.call("srun", "--nodes=2", wishes.cli, "launch", *CPU, "--nproc_per_node", 2, "--grace_period", 5, "sh", "-c",
                      "[ $RANK = 3 ] && exit 7; sleep 600")
    expect(done, 7, r"rank 3 failed with exit code 7", r"rank 3 on machine 1 \(node2\) failed with exit code 7")
    assert time.monotonic() - began < 30, "the step did not end at once"


def submit(slurm, *command):
    done = slurm.call(*command)
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert done.returncode == 0 and found, done.stdout
    return found[1]


def submitted_by_the_launcher(slurm, wishes):
    """--submit writes the job file, and --dry_run prints it."""
    line = [wishes.cli, "launch", "--submit", "--sbatch", "--time=5 --comment='two words' --output=job-%j.out", "--num_machines", 2, *CPU, "--nproc_per_node", 2,
            wishes.example, "of job.safetensors"]
    job = submit(slurm, *line)
    state = slurm.await_end(job)
    text = (slurm.folder / f"job-{job}.out").read_text()
    assert state == "COMPLETED" and trained(text) == on_one_machine(slurm, wishes), f"{state}:\n{text}"
    assert (slurm.folder / "of job.safetensors").exists()
    fails = submit(slurm, *line[:2], "--submit", "--sbatch", "--output=job-%j.out", "--num_machines", 2, *CPU, "--nproc_per_node", 2, "sh", "-c",
                   "[ $RANK = 3 ] && exit 7; sleep 600")
    state = slurm.await_end(fails)
    text = (slurm.folder / f"job-{fails}.out").read_text()
    shown = slurm.call("scontrol", "show", "job", fails).stdout
    assert state == "FAILED" and "ExitCode=7:0" in shown and "rank 3 failed with exit code 7" in text, f"{shown}\n{text}"
    shown = slurm.call(*line[:2], "--dry_run", *line[2:])
    expect(shown, 0, "#SBATCH --nodes=2\n", "#SBATCH --cpus-per-task=2\n", "'of job.safetensors'\n")
    refused = slurm.call(wishes.cli, "launch", "--submit", "--sbatch", "--partition=none", "--cpu", "true")
    expect(refused, 1, "accelerate launch: sbatch refused the job: .*invalid partition specified: none")
    refused = slurm.call("env", "PATH=/nowhere", wishes.cli, "launch", "--submit", "--cpu", "true")
    expect(refused, 1, "--submit needs sbatch, which is not on PATH")


def a_batch_script_is_on_one_node(slurm, wishes):
    """A launch in it stands alone, and says so."""
    (slurm.folder / "alone.sh").write_text(f"#!/bin/sh\n{wishes.cli} launch --cpu --num_processes 2 sh -c 'echo rank $RANK of $WORLD_SIZE'\n")
    job = submit(slurm, "sbatch", "--nodes=2", "--output=alone-%j.out", "alone.sh")
    assert slurm.await_end(job) == "COMPLETED"
    text = (slurm.folder / f"alone-{job}.out").read_text()
    assert "this Slurm job has 2 nodes, and this launch is on one of them" in text and "rank 1 of 2" in text, text
    # One that a task of a step submits inherits the variables of that step.
    done = slurm.call("srun", "--nodes=2", "sh", "-c", "[ $SLURM_PROCID = 1 ] || sbatch --wait --nodes=1 --output=of-step.out alone.sh")
    expect(done, 0, "Submitted batch job")
    text = (slurm.folder / "of-step.out").read_text()
    assert text.count("of 2") == 2 and "Slurm" not in text, text
    # The shell of salloc may be on any host.
    done = slurm.call("salloc", "--nodes=2", wishes.cli, "launch", "--cpu", "--num_processes", 2, "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
    expect(done, 0, r"this shell has the Slurm allocation \d+ \(2 nodes\)", "rank 1 of 2")


SAVES = """
trap 'echo rank $RANK saves on USR1' USR1
trap 'echo rank $RANK saves on TERM; exit 0' TERM
echo rank $RANK is up
while :; do sleep 0.1 & wait; done
"""


def signals_reach_the_program(slurm, wishes):
    """From scancel, and before and at the time limit."""
    (slurm.folder / "saves.sh").write_text(SAVES)
    launch = f"srun {wishes.cli} launch --cpu --nproc_per_node 2 sh saves.sh"
    (slurm.folder / "job.sh").write_text(f"#!/bin/sh\n{launch}\n")
    first = submit(slurm, "sbatch", "--nodes=2", "--output=told-%j.out", "job.sh")
    second = submit(slurm, "sbatch", "--nodes=2", "--output=limited-%j.out", "--time=1", "--signal=USR1@40", "job.sh")
    told, limited = slurm.folder / f"told-{first}.out", slurm.folder / f"limited-{second}.out"
    await_true("the ranks", lambda: told.exists() and told.read_text().count("is up") == 4)
    slurm.call("scancel", "--signal=USR1", first)
    await_true("all ranks to save", lambda: all(f"rank {rank} saves on USR1" in told.read_text() for rank in range(4)), 20)
    state = slurm.state_of(first)
    assert state == "RUNNING", state
    slurm.call("scancel", first)
    await_true("all ranks to save again", lambda: all(f"rank {rank} saves on TERM" in told.read_text() for rank in range(4)), 20)
    state = slurm.await_end(first)
    assert state == "CANCELLED", state
    state = slurm.await_end(second, 150)
    assert state == "TIMEOUT", f"{state}:\n{limited.read_text()}"
    for cause in ("USR1", "TERM"):
        missing = [rank for rank in range(4) if f"rank {rank} saves on {cause}" not in limited.read_text()]
        assert not missing, f"ranks {missing} did not save on {cause}:\n{limited.read_text()}"


COUNTS = """
step=$(cat step-$RANK 2>/dev/null || echo 0)
echo "rank $RANK begins at step $step, restart ${SLURM_RESTART_COUNT:-0}"
trap 'echo $step >step-$RANK; echo rank $RANK saved; exit 1' TERM
[ $step -lt 10 ] && { step=10; echo rank $RANK waits; while :; do sleep 0.1 & wait; done; }
step=20
echo "rank $RANK ends at step $step"
"""


def a_requeued_job_resumes(slurm, wishes):
    """scontrol requeue ends the ranks, which save, and starts the job again."""
    (slurm.folder / "counts.sh").write_text(COUNTS)
    job = submit(slurm, wishes.cli, "launch", "--submit", "--num_machines", 2, "--cpu", "--nproc_per_node", 1, "--max_restarts", 1, "--sbatch",
                 "--output=requeued-%j.out", "sh", "counts.sh")
    log = slurm.folder / f"requeued-{job}.out"
    await_true("the ranks", lambda: log.exists() and log.read_text().count("waits") == 2)
    slurm.call("scontrol", "requeue", job)
    await_true("the restart", lambda: "restart 1" in log.read_text(), 120)
    assert slurm.await_end(job) == "COMPLETED", log.read_text()
    for rank in range(2):
        assert re.search(f"rank {rank} saved\n", log.read_text()), log.read_text()
        assert f"rank {rank} begins at step 10, restart 1" in log.read_text() and f"rank {rank} ends at step 20" in log.read_text(), log.read_text()


def jobs_on_the_same_nodes_do_not_meet(slurm, wishes):
    """Two of the same program, at the same time."""
    jobs = [slurm.begin("srun", "--nodes=2", wishes.cli, "launch", *CPU, "--nproc_per_node", 2, wishes.example, f"{i}.safetensors") for i in range(2)]
    jobs += [slurm.begin("srun", "--nodes=2", "--ntasks-per-node=2", wishes.example, "2.safetensors")]
    told = [job.communicate(timeout=180)[0] for job in jobs]
    one = on_one_machine(slurm, wishes)
    assert [job.returncode for job in jobs] == [0] * 3 and all(trained(text) == one for text in told), "\n".join(told)


SCENES = [srun_without_the_launcher, srun_of_launchers, own_names_may_be_loopback, the_self_test_passes, several_tasks_on_a_node, a_failing_rank_ends_the_step, submitted_by_the_launcher,
          a_batch_script_is_on_one_node, jobs_on_the_same_nodes_do_not_meet, signals_reach_the_program, a_requeued_job_resumes]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cli", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--examples", required=True, type=lambda path: str(pathlib.Path(path).resolve()), help="the folder of the example programs")
    parser.add_argument("--only")
    wishes = parser.parse_args()
    wishes.example = f"{wishes.examples}/sharded"
    failed = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    slurm = Slurm()
    try:
        for scene in SCENES:
            if wishes.only not in (None, scene.__name__):
                continue
            began = time.monotonic()
            try:
                scene(slurm, wishes)
                print(f"{scene.__name__}: held, {time.monotonic() - began:.1f} s", flush=True)
            except (AssertionError, subprocess.SubprocessError) as error:
                failed += 1
                print(f"{scene.__name__}: FAILED\n{error}\n{slurm.logs()}", flush=True)
            slurm.call("scancel", "--user=root", "--full")
    finally:
        slurm.end()
    print(f"{failed} scenes failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
