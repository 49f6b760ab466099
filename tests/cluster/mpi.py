#!/usr/bin/env python3
"""Programs that Open MPI and MPICH (hydra) start, with and without the launcher, on hosts with an sshd each. Needs root; see ssh_hosts.py.

mpi.py --cli ACCELERATE --example SHARDED --scenes SCENES [--only SCENE]"""

import argparse
import os
import signal
import subprocess
import sys

from ssh_hosts import Command, SshHosts, result_of, run_scenes

WAIT_FOREVER = "echo up; sleep 600"


class Dialect:
    """One MPI: how its mpirun is called, and its hostfile."""

    def __init__(self, hosts, name, program, line, flags, export, variables):
        self.name, self.flags, self.export, self.variables = name, flags, export, variables
        # The launcher takes the mpirun that PATH finds first.
        hosts.write(f"bin-{name}/mpirun", f'#!/bin/sh\nexec {program} "$@"\n', 0o755)
        self.path = f"{hosts.path}/bin-{name}:{hosts.path}/bin:{os.environ['PATH']}"
        self.hostfile = f"hosts.{name}"
        hosts.write(self.hostfile, "".join(line.format(host) + "\n" for host in ("worker-0", "worker-1")))

    def command(self, hosts, *words, **variables):
        return Command(hosts, *words, **{"PATH": self.path, **self.variables, **variables})


def dialects(hosts):
    rsh = f"{hosts.path}/bin/ssh"
    yield Dialect(hosts, "openmpi", "/usr/bin/mpirun.openmpi", "{} slots=2", lambda file: ["--hostfile", file], lambda name, value: ["-x", f"{name}={value}"],
                  {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm_rsh_agent": rsh})
    yield Dialect(hosts, "mpich", "/usr/bin/mpirun.mpich", "{}:2", lambda file: ["-f", file], lambda name, value: ["-genv", name, value], {"HYDRA_LAUNCHER_EXEC": rsh})


class Scenes:
    def __init__(self, hosts, wishes):
        self.hosts = hosts
        self.cli = wishes.cli
        self.example = wishes.example
        self.scenes = wishes.scenes
        one = subprocess.run([self.cli, "launch", "--cpu", "--num_cpu_threads_per_process", "1", "--num_processes", "4", "--main_process_port",
                              "0", self.example, f"{hosts.path}/one.safetensors"], check=True, capture_output=True, text=True)
        self.expected = result_of(one.stdout)

    def launch(self, mpi, *words, flags=(), **variables):
        return mpi.command(self.hosts, self.cli, "launch", "--cpu", "--num_cpu_threads_per_process", 1, "--num_machines", 2, "--num_processes", 4,
                           "--main_process_ip", "worker-0", "--mpirun_hostfile", mpi.hostfile, *flags, *words, **variables)

    def mpirun(self, mpi, *words, **variables):
        return mpi.command(self.hosts, "mpirun", *words, OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="1", **variables)

    def expect_trained(self, text):
        assert result_of(text) == self.expected, f"{text}, expected {self.expected}"

    def one_host_without_the_launcher(self, mpi):
        oversubscribe = ["--oversubscribe"] if mpi.name == "openmpi" else []
        self.expect_trained(self.mpirun(mpi, *oversubscribe, "-n", 4, self.example, self.hosts.path / "out.safetensors").expect(0))

    def two_hosts_without_the_launcher(self, mpi):
        variables = {"MASTER_ADDR": "worker-0", "OMP_NUM_THREADS": 1, "ACCELERATE_USE_CPU": 1}
        exported = [word for name, value in variables.items() for word in mpi.export(name, value)]
        self.expect_trained(self.mpirun(mpi, *mpi.flags(mpi.hostfile), *exported, "-n", 4, self.example, self.hosts.path / "out.safetensors").expect(0))

    def two_hosts_without_an_address_are_told(self, mpi):
        launch = self.mpirun(mpi, *mpi.flags(mpi.hostfile), "-n", 4, self.example, self.hosts.path / "out.safetensors")
        assert launch.end(60) != 0 and "MASTER_ADDR is not set, but only 2 of the 4 processes" in launch.text(), launch.text()

    def two_hosts_with_the_launcher(self, mpi):
        self.expect_trained(self.launch(mpi, self.example, self.hosts.path / "out.safetensors").expect(0))

    def variables_reach_every_rank(self, mpi):
        script = 'echo "$(hostname) $MASTER_ADDR $MASTER_PORT $ACCELERATE_MIXED_PRECISION $OMP_NUM_THREADS $NCCL_DEBUG $RANK."'
        text = self.launch(mpi, "sh", "-c", script, flags=("--mixed_precision", "bf16", "--main_process_port", 29777), NCCL_DEBUG="WARN").expect(0)
        for host in range(2):
            assert text.count(f"worker-{host} worker-0 29777 bf16 1 WARN .") == 2, text

    def rank_fails_on_another_host(self, mpi):
        """Its peers notice it in their collectives, so that this holds for hydra too, which waits for the others after an exit code."""
        launch = self.launch(mpi, self.scenes, "throws_early", self.hosts.path)
        launch.expect(3, "rank 0 of 4: Rank 3 has failed", "rank 2 of 4: Rank 3 has failed", "mpirun failed with exit code 3", limit=30)

    def exit_code_is_that_of_the_rank(self, mpi):
        """Open MPI ends the others at once. Hydra waits for them, and joins the bits of all exit codes."""
        rest = "sleep 600" if mpi.name == "openmpi" else "exit 0"
        self.launch(mpi, "sh", "-c", f"[ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} = 3 ] && exit 7; {rest}").expect(7, limit=30)

    def rank_is_killed_on_another_host(self, mpi):
        folder = self.hosts.path / f"up-{mpi.name}"
        folder.mkdir()
        rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
        # All must have started: hydra 4.0.2 may wait for ever when one is killed before.
        script = f"touch {folder}/{rank}; [ {rank} = 3 ] || sleep 600; while [ $(ls {folder} | wc -l) -lt 4 ]; do sleep 0.05; done; kill -9 $$"
        launch = self.launch(mpi, "sh", "-c", script)
        # Hydra's is the signal without 128, or 255 when one of its own processes notices first.
        assert launch.end(30) in ((137,) if mpi.name == "openmpi" else (9, 255)), launch.text()

    def ended_launcher_leaves_nothing(self, mpi):
        for number in (signal.SIGTERM, signal.SIGINT):
            launch = self.launch(mpi, "sh", "-c", WAIT_FOREVER)
            launch.await_text("up\n", 4)
            launch.process.send_signal(number)
            launch.expect(128 + number, limit=40)
            self.hosts.expect_nothing_left(30)

    def killed_launcher_leaves_nothing(self, mpi):
        launch = self.launch(mpi, "sh", "-c", WAIT_FOREVER)
        launch.await_text("up\n", 4)
        launch.process.send_signal(signal.SIGKILL)
        launch.expect(-signal.SIGKILL)
        self.hosts.expect_nothing_left(30)

    def unknown_host_is_named(self, mpi):
        """Hydra waits for such a host for ever; ssh names it, and a signal ends the launch."""
        self.hosts.write(mpi.hostfile + "-wrong", (self.hosts.path / mpi.hostfile).read_text().replace("worker-1", "worker-9"))
        launch = self.launch(mpi, "sh", "-c", WAIT_FOREVER, flags=("--mpirun_hostfile", mpi.hostfile + "-wrong"))
        if mpi.name == "mpich":
            launch.await_text("worker-9")
            launch.process.send_signal(signal.SIGTERM)
        assert launch.end(60) != 0 and "worker-9" in launch.text(), launch.text()

    def all(self):
        names = ["one_host_without_the_launcher", "two_hosts_without_the_launcher", "two_hosts_without_an_address_are_told", "two_hosts_with_the_launcher",
                 "variables_reach_every_rank", "rank_fails_on_another_host", "exit_code_is_that_of_the_rank", "rank_is_killed_on_another_host", "ended_launcher_leaves_nothing",
                 "killed_launcher_leaves_nothing", "unknown_host_is_named"]
        for mpi in dialects(self.hosts):
            for name in names:
                yield f"{name}, {mpi.name}", lambda name=name, mpi=mpi: getattr(self, name)(mpi)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cli", required=True)
    parser.add_argument("--example", required=True, help="the example program sharded")
    parser.add_argument("--scenes", required=True, help="the test program scenes")
    parser.add_argument("--only")
    wishes = parser.parse_args()
    wishes.cli, wishes.example, wishes.scenes = (os.path.abspath(path) for path in (wishes.cli, wishes.example, wishes.scenes))
    hosts = SshHosts(2)
    try:
        failed = run_scenes(hosts, Scenes(hosts, wishes).all(), wishes.only)
    finally:
        hosts.end()
    print(f"{failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
