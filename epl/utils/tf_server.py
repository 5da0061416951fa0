"""TensorFlow's server of this process, and which network interfaces it can be reached by.

TensorFlow 1.15 listens on every interface, and its protocol has no authentication: a program that reaches the port can
run ops with the rights of the user, also ops that read and write files. So EPL limits the socket before the server
begins to answer:

    one machine         lo                                          others are refused
    several machines    lo, the interface of the worker's address   others get no answer

The kernel limits it, by one of two ways:

| | takes | without privilege |
| --- | --- | --- |
| SO_BINDTODEVICE | one interface | since Linux 5.7 |
| SO_ATTACH_FILTER, a packet filter | several | except the newest (seen: 6.18 asks for CAP_NET_ADMIN) |

So for lo one of the two works nearly everywhere; otherwise the start is refused. On several machines a server that
cannot be limited is open, and a message says so.
"""

import array
import contextlib
import ctypes
import fcntl
import os
import socket
import stat
import struct
import sys
from typing import Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from epl.utils.errors import ClusterError

LOOPBACK = "lo"

_SO_BINDTODEVICE, _SO_ATTACH_FILTER = 25, 26
_SIOCGIFCONF = 0x8912
_IFREQ = struct.Struct("16s 2x 2x 4s 16x")  # struct ifreq with an IPv4 address
# Classic BPF: opcodes, and where a program finds the index of the interface that a packet came by.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_INTERFACE = 0xFFFFF000 + 8
_ATTEMPTS = 5


def start(address: str, others: Sequence[str], config: tf.ConfigProto) -> tf.train.Server:
    """Starts a server on a free port that can be reached by the interfaces of the job alone.

    Args:
      address: name or IP address of this machine in the job.
      others: the addresses of the other machines of the job; none if all workers are on this machine.
      config: the configuration of the server's devices.

    Raises:
      ClusterError: the workers reach each other by lo, but the system cannot limit the server to it.
    """
    interfaces, problem = _interfaces_of_job(address, others)
    for _ in range(_ATTEMPTS):
        server = tf.train.Server.create_local_server(config=config, start=False)  # listens, and does not answer yet
        port = int(server.target.rpartition(":")[2])
        if not problem:
            problem = _limit(port, interfaces)
        if not _is_connected(port):
            break
        # A program connected before the limit and would get answers: give the port up.
    else:
        raise ClusterError(
            "Somebody connects to every port that this process opens before the port can be limited to an interface, "
            "as port scanners do. Keep them from this machine, and start again."
        )
    if interfaces == [LOOPBACK] and problem:
        raise ClusterError(
            f"TensorFlow's server of this process would be open to every network of this machine: {problem}. All "
            "workers of the model are on this machine, so nobody else may reach it. Run the job where a socket can be "
            "limited (Linux, SO_ATTACH_FILTER), or use one worker with all devices."
        )
    if interfaces != [LOOPBACK]:
        where = f"every interface ({problem})" if problem else " and ".join(interfaces)
        sys.stderr.write(
            f"EPL: TensorFlow's server of this process listens at port {port} of {where}, and TensorFlow's protocol "
            "has no authentication: whoever reaches the port runs ops in this process, and reads and writes files with "
            "its rights. Let none but the machines of the job into this network.\n"
        )
    server.start()
    return server


def limit(port: int, interfaces: Sequence[str]) -> None:
    """Limits the sockets of this process that listen at a port to some interfaces.

    Raises:
      OSError: the system cannot, or nothing listens there.
    """
    sockets = list(_listening(port))
    if not sockets:
        raise OSError(f"no socket of this process listens at port {port}")
    for listening in sockets:
        with listening:
            if len(interfaces) > 1 or not _bind_to_device(listening, interfaces[0]):
                _attach_filter(listening, [socket.if_nametoindex(name) for name in interfaces])


def interface_of(address: str) -> Optional[str]:
    """The network interface of this machine that has an address (a name or an IP); None if none has it.

    Raises:
      OSError: the name cannot be resolved.
    """
    for ip in _resolve(address):
        name = _interface_of_ip6(ip) if ":" in ip else _interface_of_ip4(ip)
        if name is not None:
            return name
    return None


def _interfaces_of_job(address: str, others: Sequence[str]) -> Tuple[List[str], str]:
    """The interfaces by which the workers of a job reach this machine, lo first; or why they are not known."""
    if not others:
        return [LOOPBACK], ""
    try:
        found = {interface_of(address)}
        if found & {None, LOOPBACK}:  # the name means 127.0.1.1 here, or an address that forwards to this machine
            found = {interface_of(_address_towards(other)) for other in others}
    except OSError as error:
        return [], f"the interface of {address} is not known: {error}"
    if None in found:
        return [], f"no interface of this machine has the address {address}"
    return [LOOPBACK, *sorted(name for name in found if name and name != LOOPBACK)], ""


def _address_towards(other: str) -> str:
    """The source address of packets from this machine to another one; no packet is sent."""
    for ip in _resolve(other):
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            any_socket.connect((ip, 9))
            return str(any_socket.getsockname()[0])
    raise OSError(f"{other} has no address")


def _resolve(address: str) -> List[str]:
    infos = socket.getaddrinfo(address.strip("[]"), None, type=socket.SOCK_STREAM)
    return [str(info[4][0]).partition("%")[0] for info in infos]


def _limit(port: int, interfaces: Sequence[str]) -> str:
    """Limits a port; returns why that is not possible, or ""."""
    try:
        limit(port, interfaces)
    except OSError as error:
        return f"it cannot be limited to {' and '.join(interfaces)}: {error}"
    return ""


def _bind_to_device(listening: socket.socket, interface: str) -> bool:
    try:
        listening.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, interface.encode() + b"\0")
    except OSError:
        return False
    return True


def _attach_filter(listening: socket.socket, indices: Sequence[int]) -> None:
    """Makes the kernel drop packets from other interfaces, before a connection is made."""
    last = len(indices)
    program = [(_LOAD, 0, 0, _INTERFACE)]
    program += [(_JUMP_IF_EQUAL, last - at, 0, index) for at, index in enumerate(indices)]  # to the second return
    program += [(_RETURN, 0, 0, 0), (_RETURN, 0, 0, 0xFFFFFFFF)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))


def _listening(port: int) -> Iterator[socket.socket]:
    """Copies of the sockets of this process that listen at a port; the caller closes them."""
    for fd in [int(name) for name in os.listdir("/proc/self/fd") if _is_socket(name)]:
        with contextlib.suppress(OSError):  # closed meanwhile
            copy = socket.socket(fileno=os.dup(fd))
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and copy.getsockname()[1] == port:
                yield copy
            else:
                copy.close()


def _is_socket(fd: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.stat("/proc/self/fd/" + fd).st_mode)
    return False


def _is_connected(port: int) -> bool:
    """Whether there is a connection to a port of this machine."""
    listens = "0A"
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        if os.path.exists(table):
            with open(table, encoding="ascii") as source:
                rows = [line.split() for line in source.readlines()[1:]]
            if any(int(row[1].rpartition(":")[2], 16) == port and row[3] != listens for row in rows):
                return True
    return False


def _interface_of_ip4(ip: str) -> Optional[str]:
    if ip.startswith("127."):
        return LOOPBACK
    entries = array.array("B", bytes(_IFREQ.size * 1024))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFCONF, struct.pack("@iP", len(entries), entries.buffer_info()[0]))
    (size,) = struct.unpack_from("@i", answer)
    for name, found in _IFREQ.iter_unpack(entries.tobytes()[:size]):
        if socket.inet_ntoa(found) == ip:
            return str(name.partition(b"\0")[0].decode().partition(":")[0])  # eth0:1 is a second address of eth0
    return None


def _interface_of_ip6(ip: str) -> Optional[str]:
    wanted = socket.inet_pton(socket.AF_INET6, ip).hex()
    with open("/proc/self/net/if_inet6", encoding="ascii") as source:
        rows: List[List[str]] = [line.split() for line in source]
    return next((row[5] for row in rows if row[0] == wanted), None)
