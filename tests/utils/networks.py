"""Machines for tests: network namespaces of this machine, joined by virtual cables. Needs root."""

import contextlib
import os
import shutil
import subprocess
import sys
from typing import Iterator, List, NamedTuple

CAN_MAKE = os.geteuid() == 0 and shutil.which("ip") is not None


class Networks(NamedTuple):
    """The names of two namespaces.

    Attributes:
      own: has 10.203.0.1 and 10.204.0.1, on two cables.
      stranger: has 10.203.0.2 and 10.204.0.2.
    """

    own: str
    stranger: str


_TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.0)
    print("connected")
except ConnectionRefusedError:
    print("refused")
except socket.timeout:
    print("no answer")
"""


@contextlib.contextmanager
def two_networks() -> Iterator[Networks]:
    """Makes the namespaces, and takes them away again."""
    made = Networks(*[f"epl{os.getpid()}{name}" for name in "ab"])
    try:
        for name in made:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for cable, net in (("one", "10.203.0"), ("two", "10.204.0")):
            ends = ["netns", made.own, "type", "veth", "peer", "name", cable, "netns", made.stranger]
            _ip("link", "add", cable, *ends)
            for host, name in enumerate(made, 1):
                _ip("-n", name, "address", "add", f"{net}.{host}/24", "dev", cable)
                _ip("-n", name, "link", "set", cable, "up")
        yield made
    finally:
        for name in made:
            subprocess.call(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL)


def inside(network: str, *command: str) -> List[str]:
    """The command line that runs a command in a namespace."""
    return ["ip", "netns", "exec", network, *command]


def connect(network: str, address: str, port: int) -> str:
    """What comes of a connection from a namespace: "connected", "refused" or "no answer"."""
    command = inside(network, sys.executable, "-c", _TRY, address, str(port))
    return subprocess.check_output(command, timeout=20, universal_newlines=True).strip()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20)
