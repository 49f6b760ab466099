"""A Slurm cluster of our own: munged, slurmctld and one slurmd on each of a few hosts made of network namespaces. Needs root, iproute2 and Debian's
slurm-wlm. All of it lives in a temporary folder and in the namespaces, and ends with them."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from network import Network

CONFIGURATION = """
ClusterName=test
SlurmctldHost=control
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
GresTypes=gpu
NodeName={nodes} CPUs=8 RealMemory=2000 Gres=gpu:2
PartitionName=all Nodes={nodes} Default=YES MaxTime=60 State=UP
{more}
"""


ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"}


def await_true(what, condition, limit=60):
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until, f"waited {limit} s for {what}"
        time.sleep(0.05)


class Slurm:
    """Node i is host i of the network; host 0 is where users submit."""

    def __init__(self, nodes=2, more=""):
        self.nodes = [f"node{i + 1}" for i in range(nodes)]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self.processes = []
        self.network = Network(nodes + 1, ["control", *self.nodes])
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "SLURM_", "SBATCH_", "SRUN_"))}
        self.environment |= {"SLURM_CONF": str(self.folder / "slurm.conf"), "HF_HOME": str(self.folder), "OMP_NUM_THREADS": "1",
                             "PATH": os.environ["PATH"] + ":/usr/sbin"}
        try:
            self.start(more)
        except BaseException:
            print(self.logs(), self.call("sinfo", "--Node", "--long").stdout, flush=True)
            self.end()
            raise

    def start(self, more):
        for name in ["state", *(f"spool-{node}" for node in self.nodes)]:
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder, nodes=",".join(self.nodes), more=more))
        # Nothing uses control groups, which namespaces do not have, but without a word slurmd looks for them.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        # Devices that every machine has stand for GPUs: Slurm counts them, and nobody opens them.
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.serve(0, "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munged.pid",
                   f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed")
        await_true("munged", (self.folder / "munge.socket").exists)
        self.serve(0, "slurmctld", "-D", "-i")
        await_true("slurmctld", lambda: " is UP" in self.call("scontrol", "ping").stdout)
        for host in range(1, len(self.nodes) + 1):
            self.serve(host, "slurmd", "-D")
        await_true("idle nodes", self.is_ready)

    def serve(self, host, program, *arguments):
        with (self.folder / f"{program}-{host}.out").open("w") as log:
            self.processes.append(subprocess.Popen(self.network.on(host, program, *arguments), env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                                                   stderr=log))

    def is_ready(self):
        states = self.call("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
        return states == ["idle"] * len(self.nodes)

    def begin(self, *command, **options):
        """Starts a command as a user on the host where jobs are submitted."""
        return subprocess.Popen(self.network.on(0, *command), **{"env": self.environment, "cwd": self.folder, "text": True, "stdin": subprocess.DEVNULL,
                                                                 "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | options)

    def call(self, *command, limit=120, **options):
        """The same, to its end."""
        process = self.begin(*command, **options)
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{command} took more than {limit} s:\n{process.communicate()[0]}") from None
        return subprocess.CompletedProcess(command, process.returncode, output)

    def state_of(self, job):
        """RUNNING, COMPLETED and so on; what scontrol says when it has no answer."""
        shown = self.call("scontrol", "show", "job", job).stdout
        return next((word.split("=")[1] for word in shown.split() if word.startswith("JobState=")), shown)

    def await_end(self, job, limit=120):
        seen = []

        def has_ended():
            seen.append(self.state_of(job))
            return seen[-1] in ENDED
        await_true(f"the end of job {job}", has_ended, limit)
        for other in set(seen) - ENDED - {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}:
            print(f"scontrol said of job {job}: {other}", flush=True)
        return seen[-1]

    def logs(self):
        return "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}\n" for path in sorted(self.folder.glob("*-*.out")))

    def end(self):
        self.network.end()
        for process in self.processes:
            process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)
