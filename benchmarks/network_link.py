"""A network link between two network namespaces with a rate and a delay, for kernels without netem.

    namespace of whoever starts it                     namespace of the link's own process
    10.77.0.1  device "wire"  <-- rate, delay, in order -->  device "wire"  10.77.0.2

Each direction is a queue: a packet leaves when those before it have gone at the given rate, and arrives a delay later.
None is lost. The kernel hands packets over through two TUN devices.

    unshare -rn python benchmarks/network_link.py RATE DELAY COMMAND ...

runs a command next to a link of RATE bits and DELAY seconds. In the command, {other} is the file of the second
namespace, for `nsenter --net=` or `setns`.
"""

import collections
import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time
from typing import Deque, Tuple

MTU = 9000  # jumbo frames, as networks of clusters have
ADDRESSES = ("10.77.0.1", "10.77.0.2")
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
_CLONE_NEWNET = 0x40000000  # linux/sched.h


class Direction:
    """The packets on their way from one device to the other."""

    def __init__(self, source: int, target: int, rate: float, delay: float) -> None:
        self._source, self._target, self._seconds_per_byte, self._delay = source, target, 8.0 / rate, delay
        self._free_at = 0.0
        self._packets: Deque[Tuple[float, bytes]] = collections.deque()

    def take(self) -> None:
        """Takes what the kernel has to send now."""
        try:
            while True:
                packet = os.read(self._source, MTU)
                self._free_at = max(self._free_at, time.monotonic()) + len(packet) * self._seconds_per_byte
                self._packets.append((self._free_at + self._delay, packet))
        except BlockingIOError:
            return

    def deliver(self) -> float:
        """Hands over what has arrived; returns when the next packet will have, infinity if there is none."""
        while self._packets and self._packets[0][0] <= time.monotonic():
            try:
                os.write(self._target, self._packets.popleft()[1])
            except OSError:
                pass  # no packet of the protocol: the receiver refuses it as it would from any network
        return self._packets[0][0] if self._packets else float("inf")


def _device(address: str) -> int:
    """A TUN device in the namespace of this process, up, with its address."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"wire", _IFF_TUN | _IFF_NO_PI))
    for command in (
        ["link", "set", "lo", "up"],
        ["addr", "add", address + "/24", "dev", "wire"],
        ["link", "set", "wire", "up", "mtu", str(MTU), "txqueuelen", "10000"],
    ):
        subprocess.run(["ip"] + command, check=True)
    return device


def _serve(rate: float, delay: float, parent: int) -> None:
    """Connects this namespace with a new one, says so to the parent, and moves packets until the parent is gone."""
    here = _device(ADDRESSES[0])
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
    there = _device(ADDRESSES[1])
    os.write(parent, b"ready")
    directions = [Direction(here, there, rate, delay), Direction(there, here, rate, delay)]
    while True:
        wait = min(direction.deliver() for direction in directions) - time.monotonic()
        timeout = None if wait == float("inf") else max(0.0, wait)
        if parent in select.select([here, there, parent], [], [], timeout)[0]:
            return
        for direction in directions:
            direction.take()


def main() -> int:
    """Runs the command; returns its exit code."""
    parent, child = socket.socketpair()
    link = os.fork()
    if link == 0:
        parent.close()
        _serve(float(sys.argv[1]), float(sys.argv[2]), child.fileno())
        os._exit(0)
    child.close()
    if not parent.recv(5):
        return 1
    other = f"/proc/{link}/ns/net"
    code = subprocess.run([word.replace("{other}", other) for word in sys.argv[3:]]).returncode
    parent.close()
    os.waitpid(link, 0)
    return code


if __name__ == "__main__":
    sys.exit(main())
