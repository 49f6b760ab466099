"""Hosts made of network namespaces, which a bridge connects: real links that can be cut. Needs root and iproute2."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess


def run(*command):
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


class Network:
    """Hosts 10.77.0.1, 10.77.0.2 and so on, each a namespace with one interface, eth0. With `hosts` each has a name, and knows the others by theirs."""

    def __init__(self, count, hosts=None):
        self.names = [f"accelerate{os.getpid()}-{i}" for i in range(count)]
        self.hosts = hosts
        self.switch = f"accelerate{os.getpid()}-switch"
        for name in [self.switch, *self.names]:
            run("ip", "netns", "add", name)
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            run("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", self.switch)
            run("ip", "-n", self.switch, "link", "set", f"port{i}", "master", "bridge", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(i)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")
            if hosts:
                folder = self.files_of(name)
                folder.mkdir(parents=True)
                known = "".join(f"{self.address(j)} {host}\n" for j, host in enumerate(hosts))
                (folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}")

    @staticmethod
    def address(host):
        return f"10.77.0.{host + 1}"

    @staticmethod
    def files_of(name):
        """What `ip netns exec` puts into /etc of a namespace."""
        return pathlib.Path("/etc/netns") / name

    def on(self, host, *command):
        """The command on a host, under its name if it has one."""
        words = ["ip", "netns", "exec", self.names[host]]
        if self.hosts:
            words += ["unshare", "--uts", "sh", "-c", f'hostname {self.hosts[host]}; exec "$@"', "sh"]
        return [*words, *map(str, command)]

    def link(self, host, state):
        run("ip", "-n", self.switch, "link", "set", f"port{host}", state)

    def kill_all_on(self, host):
        found = subprocess.run(["ip", "netns", "pids", self.names[host]], check=True, capture_output=True, text=True)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def end(self):
        for host in range(len(self.names)):
            self.kill_all_on(host)
        for name in [*self.names, self.switch]:
            run("ip", "netns", "delete", name)
            shutil.rmtree(self.files_of(name), ignore_errors=True)
