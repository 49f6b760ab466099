#!/usr/bin/env python3
"""Launches on the hosts of a hostfile, through ssh and pdsh, with an sshd on every host. Needs root; see ssh_hosts.py.

hostfile.py --cli ACCELERATE --example SHARDED [--only SCENE]"""

import argparse
import os
import signal
import subprocess
import sys

from ssh_hosts import Command, SshHosts, result_of, run_scenes

WAIT_FOREVER = "echo rank $RANK up; sleep 600"


class Scenes:
    def __init__(self, hosts, wishes):
        self.hosts = hosts
        self.cli = wishes.cli
        self.example = wishes.example
        hosts.write("hosts", "# three machines\nworker-0 slots=2\n\nworker-1 slots=2\nroot@worker-2 slots=2  # the last\n")

    def launch(self, launcher, *words, flags=(), **variables):
        return Command(self.hosts, self.cli, "launch", "--cpu", "--num_cpu_threads_per_process", 1, "--deepspeed_hostfile", "hosts",
                       "--deepspeed_multinode_launcher", launcher, *flags, *words, **variables)

    # --- With ssh and with pdsh ---------------------------------------------------------------------------------------------

    def trains_as_on_one_machine(self, launcher):
        one = subprocess.run([self.cli, "launch", "--cpu", "--num_cpu_threads_per_process", "1", "--num_processes", "6", "--main_process_port",
                              "0", self.example, f"{self.hosts.path}/one.safetensors"], check=True, capture_output=True, text=True)
        text = self.launch(launcher, self.example, f"{self.hosts.path}/all.safetensors").expect(0)
        assert result_of(text) == result_of(one.stdout), f"{one.stdout} and {text}"

    def runs_on_every_host_with_its_words_and_variables(self, launcher):
        self.hosts.write("home/.deepspeed_env", "# from the file\nFROM_FILE=it's here\n")
        script = 'echo "$RANK $(hostname) $(pwd) $MASTER_ADDR $GLOO_SOCKET_IFNAME $FROM_FILE $NCCL_DEBUG $SECRET_TOKEN. $1"; cat'
        launch = self.launch(launcher, "sh", "-c", script, "sh", "a  'b' $HOME %n", NCCL_DEBUG="WARN", SECRET_TOKEN="hush")
        text = launch.expect(0)
        for rank in range(6):
            line = f"{rank} worker-{rank // 2} {self.hosts.path} 10.77.0.1 eth0 it's here WARN . a  'b' $HOME %n\n"
            assert text.count(line) == 1, f"'{line}' in:\n{text}"

    def rank_fails_on_another_host(self, launcher):
        launch = self.launch(launcher, "sh", "-c", "[ $RANK = 3 ] && exit 7; sleep 600")
        launch.expect(7, "rank 3 failed with exit code 7", limit=30)

    def unreachable_host_is_named(self, launcher):
        self.hosts.link(1, "down")
        try:
            self.launch(launcher, "sh", "-c", WAIT_FOREVER).expect(255, r"ssh: connect to host worker-1 port 22: (No route to host|Connection timed out)",
                                                                   limit=60)
        finally:
            self.hosts.link(1, "up")

    def unknown_host_is_named(self, launcher):
        self.hosts.write("hosts-wrong", "worker-0 slots=1\nworker-9 slots=1\n")
        launch = self.launch(launcher, "sh", "-c", WAIT_FOREVER, flags=("--deepspeed_hostfile", "hosts-wrong"))
        launch.expect(255, "Could not resolve hostname worker-9", limit=60)

    def refused_host_key_is_told(self, launcher):
        self.hosts.write_known_hosts("other_key")
        try:
            self.launch(launcher, "sh", "-c", WAIT_FOREVER).expect(255, "REMOTE HOST IDENTIFICATION HAS CHANGED", "Host key verification failed", limit=30)
        finally:
            self.hosts.write_known_hosts("host_key")

    def refused_login_is_told(self, launcher):
        known = (self.hosts.path / "authorized_keys").read_text()
        self.hosts.write("authorized_keys", (self.hosts.path / "other_key.pub").read_text())
        try:
            self.launch(launcher, "sh", "-c", WAIT_FOREVER).expect(255, r"root@worker-\d: Permission denied \(publickey\)", limit=30)
        finally:
            self.hosts.write("authorized_keys", known)

    def killed_launcher_leaves_nothing(self, launcher):
        script = "trap '' TERM HUP INT; echo up; (setsid sleep 600 &); sleep 600; sleep 600"
        launch = self.launch(launcher, "sh", "-c", script, flags=("--grace_period", 1))
        launch.await_text("up\n", 6)
        launch.process.send_signal(signal.SIGKILL)
        launch.expect(-signal.SIGKILL)
        self.hosts.expect_nothing_left(20)

    def terminated_launcher_leaves_nothing(self, launcher):
        launch = self.launch(launcher, "sh", "-c", "trap '' USR1; while :; do echo tick; sleep 0.1; done")
        launch.await_text("tick\n", 12)
        launch.process.send_signal(signal.SIGUSR1)  # which ends nothing
        launch.await_text("tick\n", launch.text().count("tick\n") + 60)
        launch.process.send_signal(signal.SIGTERM)
        launch.expect(143, limit=30)
        self.hosts.expect_nothing_left(20)

    def lost_host_ends_the_launch(self, launcher):
        """A host goes off the network while ranks run: it is named, and the others end."""
        launch = self.launch(launcher, "sh", "-c", WAIT_FOREVER, flags=("--grace_period", 2))
        launch.await_text("up\n", 6)
        self.hosts.link(1, "down")
        try:
            launch.expect(1, r"machine 1 \(worker-1\) was lost", limit=90)
        finally:
            self.hosts.link(1, "up")

    # --- With ssh alone -----------------------------------------------------------------------------------------------------

    def ranks_end_in_peace(self):
        """Signals reach ranks of all hosts, whose last words arrive."""
        for number in (signal.SIGTERM, signal.SIGINT):
            launch = self.launch("ssh", "sh", "-c", "trap 'echo noted' USR1; trap 'sleep 0.3; echo bye; exit 0' TERM INT; echo up; while :; do sleep 0.05; done")
            launch.await_text("up\n", 6)
            launch.process.send_signal(signal.SIGUSR1)
            launch.await_text("noted\n", 6)
            launch.process.send_signal(number)
            text = launch.expect(128 + number, limit=30)
            assert text.count("bye\n") == 6, text

    def filters_choose_hosts_and_slots(self):
        script = ("sh", "-c", "echo $RANK of $WORLD_SIZE $(hostname).")
        text = self.launch("ssh", *script, flags=("--deepspeed_inclusion_filter", "worker-2@worker-0:1")).expect(0)
        assert sorted(text.split("\n")) == ["", "0 of 3 worker-0.", "1 of 3 worker-2.", "2 of 3 worker-2."], text
        text = self.launch("ssh", *script, flags=("--deepspeed_exclusion_filter", "worker-0@worker-1:0@worker-2:1")).expect(0)
        assert sorted(text.split("\n")) == ["", "0 of 2 worker-1.", "1 of 2 worker-2."], text
        self.launch("ssh", *script, flags=("--deepspeed_inclusion_filter", "worker-3")).expect(2, "'worker-3', which is not in the hostfile")

    def wrong_hostfile_is_refused(self):
        self.hosts.write("hosts-wrong", "worker-0 slots=2\nworker-1\n")
        launch = self.launch("ssh", "sh", "-c", "echo never", flags=("--deepspeed_hostfile", "hosts-wrong"))
        text = launch.expect(1, "hosts-wrong, line 2: 'worker-1' does not say how many slots", limit=10)
        assert "never" not in text

    def pdsh_is_the_default(self):
        text = Command(self.hosts, self.cli, "launch", "--cpu", "--deepspeed_hostfile", "hosts", "sh", "-c", "echo $RANK of $WORLD_SIZE.").expect(0)
        for rank in range(6):
            assert f"worker-{rank // 2}: {rank} of 6.\n" in text, text

    def settings_come_from_a_config_file_here(self):
        """At the same path on every host; the file names the hostfile itself."""
        self.hosts.write("config.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\nuse_cpu: true\n"
                         "num_machines: 3\nnum_processes: 3\nmachine_rank: 0\ndeepspeed_config:\n  deepspeed_hostfile: hosts\n"
                         "  deepspeed_multinode_launcher: ssh\n  zero_stage: 2\n")
        launch = Command(self.hosts, self.cli, "launch", "--config_file", "config.yaml", "sh", "-c",
                         "echo $RANK $(hostname) $ACCELERATE_MIXED_PRECISION $ACCELERATE_DEEPSPEED_ZERO_STAGE.")
        text = launch.expect(0)
        for rank in range(3):
            assert f"{rank} worker-{rank} bf16 2.\n" in text, text

    def missing_program_is_told(self):
        self.launch("ssh", "./no-such-program").expect(127, "no-such-program", limit=30)

    def without_ssh_every_host_knows_its_rank(self):
        commands = [Command(self.hosts, self.cli, "launch", "--cpu", "--deepspeed_hostfile", "hosts", "--deepspeed_multinode_launcher", "nossh", "sh", "-c",
                            "echo $RANK $(hostname).", host=host) for host in range(3)]
        for host, command in enumerate(commands):
            command.expect(0, rf"{2 * host} worker-{host}\.", rf"{2 * host + 1} worker-{host}\.")

    def all(self):
        names = ["trains_as_on_one_machine", "runs_on_every_host_with_its_words_and_variables", "rank_fails_on_another_host", "unreachable_host_is_named",
                 "unknown_host_is_named", "refused_host_key_is_told", "refused_login_is_told", "killed_launcher_leaves_nothing",
                 "terminated_launcher_leaves_nothing", "lost_host_ends_the_launch"]
        for launcher in ("ssh", "pdsh"):
            for name in names:
                yield f"{name}, {launcher}", lambda name=name, launcher=launcher: getattr(self, name)(launcher)
        for name in ("ranks_end_in_peace", "filters_choose_hosts_and_slots", "wrong_hostfile_is_refused", "pdsh_is_the_default",
                     "settings_come_from_a_config_file_here", "missing_program_is_told",
                     "without_ssh_every_host_knows_its_rank"):
            yield name, getattr(self, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cli", required=True)
    parser.add_argument("--example", required=True, help="the example program sharded")
    parser.add_argument("--only")
    wishes = parser.parse_args()
    wishes.cli, wishes.example = os.path.abspath(wishes.cli), os.path.abspath(wishes.example)
    hosts = SshHosts(3, debian=True)
    try:
        failed = run_scenes(hosts, Scenes(hosts, wishes).all(), wishes.only)
    finally:
        hosts.end()
    print(f"{failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
