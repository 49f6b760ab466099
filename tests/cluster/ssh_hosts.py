"""Hosts of a Network that have names, processes and an sshd of their own: worker-0, worker-1 and so on, reached from the host `login`.
Keys and configurations are made in a temporary folder; nothing of this machine's own ssh is read or written. Needs root, iproute2,
util-linux, openssh-server and openssh-client."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from network import Network, run

ENDS_WITHIN = 60  # seconds that the processes of a launch may need to end everywhere


def await_that(done, what, limit=30):
    until = time.monotonic() + limit
    while not done():
        assert time.monotonic() < until, f"waited {limit} s for {what}"
        time.sleep(0.02)


class SshHosts(Network):
    """`count` workers, and one host more from which launches are made. `debian`: each takes its own name for 127.0.1.1."""

    def __init__(self, count, debian=False):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that whoever made the hosts ends them
        self.folder = tempfile.TemporaryDirectory(prefix="accelerate-cluster")
        self.path = pathlib.Path(self.folder.name)
        self.count = count
        self.login = count
        self.servers = []
        self.own = set()
        super().__init__(count + 1)
        try:
            self.write_files(debian)
            for host in range(count):
                self.start_sshd(host)
        except BaseException:
            self.end()
            raise

    def name(self, host):
        return "login" if host == self.login else f"worker-{host}"

    def write(self, name, text, mode=0o600):
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def write_files(self, debian):
        for key in ("host_key", "user_key", "other_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path / key)
        self.write("authorized_keys", (self.path / "user_key.pub").read_text())
        self.write_known_hosts("host_key")
        self.write("ssh_config", f"""Host *
  User root
  IdentityFile {self.path}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {self.path}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
""")
        self.write("bin/ssh", f"#!/bin/sh\nexec /usr/bin/ssh -F {self.path}/ssh_config \"$@\"\n", 0o755)
        (self.path / "home").mkdir()
        names = "".join(f"{self.address(host)} {self.name(host)}\n" for host in range(self.count + 1))
        for host in range(self.count + 1):
            # As on Debian: a host takes its own name for an address that nobody else reaches.
            others = names.replace(f"{self.address(host)} {self.name(host)}\n", f"127.0.1.1 {self.name(host)}\n")
            self.write(f"hosts-{host}", f"127.0.0.1 localhost\n{others if debian else names}", 0o644)
        for host in range(self.count):
            self.write(f"sshd_config-{host}", f"""ListenAddress {self.address(host)}
HostKey {self.path}/host_key
AuthorizedKeysFile {self.path}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PidFile none
SetEnv HOME={self.path}/home
""")

    def write_known_hosts(self, key):
        public = (self.path / f"{key}.pub").read_text()
        self.write("known_hosts", "".join(f"worker-{host},{self.address(host)} {public}" for host in range(self.count)))

    def inside(self, host, *command, own_processes=False):
        """The command line that runs `command` on a host, in the process that starts it."""
        unshare = ["unshare", "--uts", "--mount"]
        if own_processes:
            unshare += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        script = f'hostname {self.name(host)} && mount --bind {self.path}/hosts-{host} /etc/hosts && exec "$@"'
        return ["ip", "netns", "exec", self.names[host], *unshare, "sh", "-c", script, "sh", *[str(word) for word in command]]

    def start_sshd(self, host):
        script = f"mount -t tmpfs none /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f {self.path}/sshd_config-{host}"
        log = open(self.path / f"sshd-{host}.log", "w")
        server = subprocess.Popen(self.inside(host, "sh", "-c", script, own_processes=True), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.servers.append(server)
        probe = self.inside(host, sys.executable, "-c", f"import socket; socket.create_connection(('{self.address(host)}', 22), 1)")
        await_that(lambda: subprocess.run(probe, capture_output=True).returncode == 0, f"sshd on {self.name(host)}")
        await_that(lambda: len(self.pids(host)) <= 2, "the probe's session to end")
        self.own |= self.pids(host)

    def pids(self, host):
        found = subprocess.run(["ip", "netns", "pids", self.names[host]], check=True, capture_output=True, text=True)
        return {int(pid) for pid in found.stdout.split()}

    def left(self):
        """What runs on the hosts beside the servers."""
        lines = []
        for host in range(self.count + 1):
            for pid in self.pids(host) - self.own:
                with contextlib.suppress(OSError):
                    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if words:  # not a zombie
                        lines.append(f"{self.name(host)}: {words[:200]}")
        return lines

    def expect_nothing_left(self, limit=ENDS_WITHIN):
        until = time.monotonic() + limit
        while left := self.left():
            assert time.monotonic() < until, "still running:\n" + "\n".join(left)
            time.sleep(0.05)

    def sweep(self):
        for host in range(self.count + 1):
            for pid in self.pids(host) - self.own:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self):
        for server in self.servers:
            server.kill()
        super().end()
        for server in self.servers:
            server.wait()
        self.folder.cleanup()


class Command:
    """A command on the host `login` (or another), its output in one file."""

    def __init__(self, hosts, *words, host=None, **variables):
        self.log = tempfile.TemporaryFile(mode="w+")
        environment = {**os.environ, "PATH": f"{hosts.path}/bin:{os.environ['PATH']}", "HOME": f"{hosts.path}/home", **variables}
        command = hosts.inside(hosts.login if host is None else host, *words)
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, cwd=hosts.path, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def text(self):
        return pathlib.Path(f"/proc/self/fd/{self.log.fileno()}").read_text(errors="replace")

    def await_text(self, text, count=1, limit=60):
        until = time.monotonic() + limit
        while self.text().count(text) < count:
            assert time.monotonic() < until and self.process.poll() is None, f"waited for '{text}' in:\n{self.text()}"
            time.sleep(0.02)

    def end(self, limit=60):
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit} s:\n{self.text()}") from None

    def expect(self, code, *parts, limit=60):
        found = self.end(limit)
        text = self.text()
        assert found == code, f"exit code {found}, expected {code}:\n{text}"
        for part in parts:
            assert re.search(part, text), f"'{part}' is not in:\n{text}"
        return text


def result_of(text):
    """What the example `sharded` says of the weights it has trained."""
    told = re.search("tensors .*", text)
    assert told, text
    return told[0]


def run_scenes(hosts, scenes, only=None):
    """Runs each scene, a name and a function, and returns how many failed."""
    failed = 0
    for name, scene in scenes:
        if only and only not in name:
            continue
        began = time.monotonic()
        try:
            scene()
            hosts.expect_nothing_left()
            print(f"{name}: held, {time.monotonic() - began:.1f} s", flush=True)
        except (AssertionError, subprocess.SubprocessError) as error:
            failed += 1
            print(f"{name}: FAILED\n{error}", flush=True)
            hosts.sweep()
    return failed
