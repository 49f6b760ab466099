#!/usr/bin/env python3
"""Launches on hosts made of network namespaces, which a bridge connects: real links that can be cut. Needs root and iproute2.

hosts.py --cli ACCELERATE --examples FOLDER [--rounds N] [--only SCENE]"""

import argparse
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from network import Network, run

PORT = 29600
FAKE_TIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
ENDS_WITHIN = 60  # seconds after a link is cut for good


class Launch:
    """The launcher of one machine. With `numbers` ("2:4"), machines have no rank, and all have the same command."""

    def __init__(self, network, cli, host, machines, program, *flags, numbers=None, variables=None):
        self.log = tempfile.TemporaryFile(mode="w+")
        command = [*network.on(host, cli), "launch", "--cpu", "--num_cpu_threads_per_process", 1]
        if numbers:
            command += ["--rdzv_backend", "c10d", "--nnodes", numbers, "--nproc_per_node", 2, "--rdzv_endpoint", f"{network.address(0)}:{PORT}",
                        "--rdzv_conf", "last_call_timeout=3,timeout=60"]
        else:
            command += ["--num_machines", machines, "--machine_rank", host, "--main_process_ip", network.address(0), "--main_process_port", PORT,
                        "--num_processes", 2 * machines]
        self.process = subprocess.Popen([str(word) for word in [*command, *flags, *program]], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, env={**os.environ, **(variables or {})})

    def text(self):
        self.log.flush()
        return pathlib.Path(f"/proc/self/fd/{self.log.fileno()}").read_text()

    def await_text(self, text, count=1):
        until = time.monotonic() + 60
        while len(re.findall(text, self.text())) < count:
            assert time.monotonic() < until and self.process.poll() is None, f"waited for '{text}' in:\n{self.text()}"
            time.sleep(0.02)

    def end(self, limit=120):
        return self.process.wait(limit)


def expect(launch, code, *parts):
    found = launch.end()
    text = launch.text()
    assert found == code, f"exit code {found}, expected {code}:\n{text}"
    for part in parts:
        assert re.search(part, text), f"'{part}' is not in:\n{text}"


def starts_in_any_order(network, wishes, chance):
    """Machines that start within seconds of each other train as one machine does."""
    machines = chance.randint(2, len(network.names))
    with tempfile.TemporaryDirectory() as folder:
        program = [f"{wishes.examples}/sharded", f"{folder}/weights.safetensors"]
        one = subprocess.run([wishes.cli, "launch", "--cpu", "--num_cpu_threads_per_process", "1", "--num_processes", str(2 * machines),
                              "--main_process_port", "0", program[0], f"{folder}/one.safetensors"], check=True, capture_output=True, text=True)
        order = list(range(machines))
        chance.shuffle(order)
        launches = {}
        for host in order:
            launches[host] = Launch(network, wishes.cli, host, machines, program)
            time.sleep(chance.uniform(0, 2.5))
        for host in order:
            expect(launches[host], 0)
        told = re.search("tensors .*", launches[0].text())
        assert told and told[0] == re.search("tensors .*", one.stdout)[0], f"{one.stdout} and {launches[0].text()}"


def cut_for_a_moment(network, wishes, chance):
    """Nobody notices."""
    program = ["sh", "-c", "echo up; sleep 9"]
    launches = [Launch(network, wishes.cli, host, 2, program) for host in range(2)]
    for launch in launches:
        launch.await_text("up", 2)
    host = chance.randint(0, 1)
    network.link(host, "down")
    time.sleep(chance.uniform(1, 5))
    network.link(host, "up")
    for launch in launches:
        expect(launch, 0)


def cut_for_good(network, wishes, chance):
    """All machines end, and name the one that cannot be reached; the one that is cut off, machine 0."""
    program = ["sh", "-c", "echo up; sleep 600"]
    launches = [Launch(network, wishes.cli, host, 3, program, "--grace_period", 5) for host in range(3)]
    for launch in launches:
        launch.await_text("up", 2)
    host = chance.randint(1, 2)
    network.link(host, "down")
    cut = time.monotonic()
    try:
        for i, launch in enumerate(launches):
            expect(launch, 1, r"machine 0 \(10.77.0.1\) was lost" if i == host else rf"machine {host} \(.*\) was lost")
        assert time.monotonic() - cut < ENDS_WITHIN, f"{time.monotonic() - cut:.0f} s"
    finally:
        network.link(host, "up")


def host_is_killed(network, wishes, chance):
    """All processes of a host, at any moment; another is started in its place, and all are restarted."""
    program = ["sh", "-c", "echo up; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 600"]
    flags = ("--max_restarts", 1, "--grace_period", 5)
    launches = [Launch(network, wishes.cli, host, 3, program, *flags) for host in range(3)]
    for launch in launches:
        launch.await_text("up", 2)
    host = chance.randint(1, 2)
    network.kill_all_on(host)
    time.sleep(chance.uniform(0, 3))
    launches[host] = Launch(network, wishes.cli, host, 3, program, *flags)
    for i, launch in enumerate(launches):
        expect(launch, 0, "up\n" if i == host else rf"machine {host} \(.*\) was lost")


def rank_is_killed(network, wishes, chance):
    """The rank is named on every machine."""
    victim = chance.randint(0, 5)
    program = ["sh", "-c", f"echo up; [ $RANK = {victim} ] && sleep 0.3 && kill -9 $$; sleep 600"]
    launches = [Launch(network, wishes.cli, host, 3, program, "--grace_period", 5) for host in range(3)]
    for i, launch in enumerate(launches):
        expect(launch, 137, rf"rank {victim} (on machine {victim // 2} \(.*\) )?was killed by SIGKILL")


def elastic_program(wishes, folder, pause=20):
    return [f"{wishes.examples}/elastic", f"{folder}/run", 3, pause]


def checksum(text):
    found = re.search("steps .* checksum .*", text)
    assert found, text
    return found[0]


def on_one_machine(wishes, processes):
    """What `elastic` ends with on so many processes that nobody disturbs."""
    with tempfile.TemporaryDirectory() as folder:
        words = [wishes.cli, "launch", "--cpu", "--num_cpu_threads_per_process", 1, "--num_processes", processes, "--main_process_port", 0,
                 *elastic_program(wishes, folder, 0)]
        return checksum(subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout)


def newest_checkpoint(folder):
    """Its number, or -1."""
    found = [int(path.name.split("_")[-1]) for path in pathlib.Path(folder).glob("run/checkpoints/checkpoint_*") if path.name[-1].isdigit()]
    return max(found, default=-1)


def await_checkpoint(folder, number=0):
    until = time.monotonic() + 60
    while newest_checkpoint(folder) < number:
        assert time.monotonic() < until, f"no checkpoint {number} in {folder}"
        time.sleep(0.02)


def same_command_in_any_order(network, wishes, chance):
    """Machines that have no rank are numbered; training is that of one machine."""
    machines = chance.randint(2, len(network.names))
    with tempfile.TemporaryDirectory() as folder:
        order = list(range(machines))
        chance.shuffle(order)
        launches = {}
        for host in order:
            launches[host] = Launch(network, wishes.cli, host, machines, elastic_program(wishes, folder, 0), numbers=machines)
            time.sleep(chance.uniform(0, 2.5))
        for host in order:
            expect(launches[host], 0)
        assert checksum(launches[0].text()) == on_one_machine(wishes, 2 * machines)


def killed_host_resumes(network, wishes, chance):
    """A host is killed in the middle of training and started again: all resume from the last checkpoint and end with the same weights."""
    with tempfile.TemporaryDirectory() as folder:
        launches = [Launch(network, wishes.cli, host, 2, elastic_program(wishes, folder), "--max_restarts", 1, "--grace_period", 5) for host in range(2)]
        await_checkpoint(folder, chance.randint(0, 2))
        time.sleep(chance.uniform(0, 0.4))
        network.kill_all_on(1)
        launches[1] = Launch(network, wishes.cli, 1, 2, elastic_program(wishes, folder), "--max_restarts", 1, "--grace_period", 5)
        for launch in launches:
            expect(launch, 0)
        assert re.search("resumed from checkpoint_.* on 4 processes", launches[0].text()), launches[0].text()
        assert checksum(launches[0].text()) == on_one_machine(wishes, 4)


def shrinks_and_grows(network, wishes, chance):
    """One of three hosts is lost, by its link or killed, or told to leave: the run resumes on two. It is started again: on three."""
    with tempfile.TemporaryDirectory() as folder:
        def start(host):
            return Launch(network, wishes.cli, host, 3, elastic_program(wishes, folder, 50), "--grace_period", 5, numbers="2:3")
        launches = [start(host) for host in range(3)]
        await_checkpoint(folder)
        host, how = chance.randint(1, 2), chance.choice(["killed", "cut", "told"])
        if how == "killed":
            network.kill_all_on(host)
        elif how == "cut":
            network.link(host, "down")
        else:
            launches[host].process.send_signal(signal.SIGTERM)
        launches[0].await_text("resumed from checkpoint_.* on 4 processes")
        if how == "told":
            expect(launches[host], 128 + signal.SIGTERM, "SIGTERM received")
        elif how == "cut":
            expect(launches[host], 1, r"machine 0 \(10.77.0.1\) was lost .* it hosts the rendezvous")
            network.link(host, "up")
        launches[host] = start(host)
        launches[0].await_text("resumed from checkpoint_.* on 6 processes")
        for launch in launches:
            expect(launch, 0)
        story = r"machine \d \(.*\) was stopped by SIGTERM" if how == "told" else r"machine \d \(.*\) was lost"
        for part in (story, r"machine 2 \(.*\) has joined", "checksum"):
            assert re.search(part, launches[0].text()), f"'{part}' is not in:\n{launches[0].text()}"


def host_of_the_rendezvous_is_lost(network, wishes, chance):
    """Nobody can take its place; it is named."""
    program = ["sh", "-c", "echo up; sleep 600"]
    launches = [Launch(network, wishes.cli, host, 3, program, "--grace_period", 5, "--max_restarts", 3, numbers="1:3") for host in range(3)]
    for launch in launches:
        launch.await_text("up", 2)
    network.kill_all_on(0)
    for launch in launches[1:]:
        expect(launch, 1, r"machine 0 \(10.77.0.1\) was lost .* it hosts the rendezvous")


def hang_is_reported(network, wishes, chance):
    """A rank that is stopped on another host is named on every host, with its call, as on one machine."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {"ACCELERATE_HANG_WARNING_SECONDS": "2"}
        program = elastic_program(wishes, folder, 50)
        launches = [Launch(network, wishes.cli, host, 2, program, "--grace_period", 5, variables=variables) for host in range(2)]
        await_checkpoint(folder)
        rank = chance.choice([2, 3])
        victim = process_of_rank(network, 1, rank)
        os.kill(victim, signal.SIGSTOP)
        for launch in launches:
            launch.await_text(f"[Rr]ank {rank}.*stopped")
        os.kill(victim, signal.SIGCONT)
        for launch in launches:
            expect(launch, 0)


def firewall(network, host, *rules):
    for rule in ("add table inet scene", "add chain inet scene in { type filter hook input priority 0 ; }", *(f"add rule inet scene in {rule}" for rule in rules)):
        run("ip", "netns", "exec", network.names[host], "nft", rule)


def firewall_is_named(network, wishes, chance):
    """A host drops what is sent to the launcher's port, to all but that port, or to the ports of gloo: each waiting side says what it waits for."""
    what = chance.choice(["launcher", "store", "gloo"])
    rules = {"launcher": [f"tcp dport {PORT} drop"],
             "store": [f"ip saddr {network.address(1)} tcp dport != {PORT} ct state new drop"],
             "gloo": [f"ip saddr {network.address(1)} tcp dport 32768-65535 ct state new drop"]}[what]  # ports that the system chooses
    firewall(network, 0, *rules)
    with tempfile.TemporaryDirectory() as folder:
        variables = {"ACCELERATE_RENDEZVOUS_WARNING_SECONDS": "3"}
        launches = [Launch(network, wishes.cli, i, 2, elastic_program(wishes, folder, 0), "--grace_period", 2, variables=variables) for i in range(2)]
        if what == "launcher":
            launches[1].await_text("waiting for machine 0 at 10.77.0.1:29600 .no answer: a firewall may drop")
        elif what == "store":
            launches[0].await_text("Rank 0 of 4 has waited .* s at 10.77.0.1:.* for these ranks: 2, 3.")
            launches[1].await_text("Rank 2 of 4 has waited .* s for rank 0 at 10.77.0.1:.* no answer: a firewall may drop")
        else:
            launches[1].await_text("Rank 2 of 4 has waited .* s for the connections of gloo and NCCL")
        run("ip", "netns", "exec", network.names[0], "nft", "delete table inet scene")
        for launch in launches:
            launch.process.send_signal(signal.SIGTERM)
        for launch in launches:
            launch.end()


NONSENSE = """
import os, socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 2) as connection:
    connection.sendall({"scan": b"", "http": b"GET / HTTP/1.0\\r\\n\\r\\n", "zeros": bytes(64), "noise": os.urandom(4096)}[sys.argv[3]])
    connection.settimeout(0.1)
    connection.recv(100)
"""


def unrelated_hosts_change_nothing(network, wishes, chance):
    """A host that does not belong to the run sends nonsense to every port that listens while it starts and trains; another job comes to its address."""
    with tempfile.TemporaryDirectory() as folder:
        program = elastic_program(wishes, folder, 30)
        launches = [Launch(network, wishes.cli, host, 2, program, "--grace_period", 5) for host in range(2)]
        while not listening(network, 0):
            assert launches[0].process.poll() is None, launches[0].text()
        other = Launch(network, wishes.cli, 2, 2, ["true"], "--machine_rank", 1)
        reached = set()
        while launches[0].process.poll() is None:
            for host in range(2):
                for port in listening(network, host):
                    reached.add((host, port))
                    subprocess.run(["ip", "netns", "exec", network.names[2], sys.executable, "-c", NONSENSE, network.address(host), str(port),
                                    chance.choice(["scan", "http", "zeros", "noise"])], stderr=subprocess.DEVNULL)
        assert len(reached) > 2, reached
        expect(other, 1, "refused by machine 0 .* another job")
        for launch in launches:
            expect(launch, 0)
        assert checksum(launches[0].text()) == on_one_machine(wishes, 4)


def listening(network, host):
    found = subprocess.run(["ip", "netns", "exec", network.names[host], "ss", "-ltnH"], check=True, capture_output=True, text=True).stdout
    return sorted({int(line.split()[3].rsplit(":", 1)[1]) for line in found.splitlines()})


def clocks_differ(network, wishes, chance):
    """By days: nothing compares the time of two hosts."""
    with tempfile.TemporaryDirectory() as folder:
        launches = []
        for host in range(2):
            variables = {"LD_PRELOAD": FAKE_TIME, "FAKETIME": chance.choice(["-400d", "-3d", "+3d", "+400d"]), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
            launches.append(Launch(network, wishes.cli, host, 2, elastic_program(wishes, folder, 0), variables=variables if host == 1 else {}))
        for launch in launches:
            expect(launch, 0)
        assert checksum(launches[0].text()) == on_one_machine(wishes, 4)


def on_ranks_alone(network, wishes, file):
    """What two ranks on two hosts print that nobody launched, as under srun and mpirun."""
    ranks = []
    for rank in range(2):
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank, "MASTER_ADDR": "node0", "MASTER_PORT": 29800,
                     "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": 1}
        ranks.append(subprocess.Popen(network.on(rank, f"{wishes.examples}/sharded", file), env={**os.environ, **{name: str(value) for name, value in variables.items()}},
                                      stdout=subprocess.PIPE, text=True))
    texts = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), texts
    return re.search("tensors .*", texts[0])[0]


def on_one_machine_sharded(wishes):
    with tempfile.TemporaryDirectory() as folder:
        words = [wishes.cli, "launch", "--cpu", "--num_cpu_threads_per_process", "1", "--num_processes", "2", "--main_process_port", "0",
                 f"{wishes.examples}/sharded", f"{folder}/one.safetensors"]
        return re.search("tensors .*", subprocess.run(words, check=True, capture_output=True, text=True).stdout)[0]


def names_may_be_loopback(network, wishes, chance):
    """Debian maps the name of a host to 127.0.1.1 on the host itself: the launchers say so, and ranks use the interface that leads to the others."""
    folders = [network.files_of(name) for name in network.names]
    try:
        for host, folder in enumerate(folders):
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{'127.0.1.1' if i == host else network.address(i)} node{i}\n" for i in range(4)))
        with tempfile.TemporaryDirectory() as results:
            program = elastic_program(wishes, results, 0)
            numbers = chance.choice([None, "2"])
            launches = [Launch(network, wishes.cli, host, 2, program, "--main_process_ip", "node0", numbers=numbers) for host in range(2)]
            for launch in launches:
                expect(launch, 0)
            assert on_ranks_alone(network, wishes, f"{results}/alone.safetensors") == on_one_machine_sharded(wishes)
            assert re.search("--main_process_ip node0 is no single address of this host", launches[0].text()), launches[0].text()
            assert checksum(launches[0].text()) == on_one_machine(wishes, 4)
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def process_of_rank(network, host, rank):
    for pid in subprocess.run(["ip", "netns", "pids", network.names[host]], check=True, capture_output=True, text=True).stdout.split():
        with contextlib.suppress(OSError):
            if f"RANK={rank}".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return int(pid)
    raise AssertionError(f"no rank {rank} on host {host}")


SCENES = [starts_in_any_order, cut_for_a_moment, cut_for_good, host_is_killed, rank_is_killed, same_command_in_any_order, killed_host_resumes,
          shrinks_and_grows, host_of_the_rendezvous_is_lost, hang_is_reported, firewall_is_named, unrelated_hosts_change_nothing,
          clocks_differ, names_may_be_loopback]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cli", required=True)
    parser.add_argument("--examples", required=True, help="the folder of the example programs")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only")
    wishes = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the hosts end
    network = Network(4)
    failed = 0
    try:
        for number in range(wishes.rounds):
            for scene in SCENES:
                if wishes.only not in (None, scene.__name__):
                    continue
                chance = random.Random(f"{wishes.seed} {number} {scene.__name__}")
                began = time.monotonic()
                try:
                    scene(network, wishes, chance)
                    print(f"{scene.__name__}, round {number}: held, {time.monotonic() - began:.1f} s", flush=True)
                except (AssertionError, subprocess.SubprocessError) as error:
                    failed += 1
                    print(f"{scene.__name__}, round {number}: FAILED\n{error}", flush=True)
                    for host in range(4):
                        network.kill_all_on(host)
    finally:
        network.end()
    print(f"{wishes.rounds} rounds, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
