"""Who reaches TensorFlow's server of a process: tried from another network namespace."""

import contextlib
import os
import socket
import subprocess
import sys
from typing import Any, Iterator, NamedTuple

import pytest

from epl.utils import tf_server
from epl.utils.errors import ClusterError
from tests.utils.networks import CAN_MAKE, Networks, connect, inside, two_networks

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(not CAN_MAKE, reason="namespaces need root and iproute2")]

SERVER = """
import sys
import tensorflow.compat.v1 as tf
from epl.utils import tf_server
own, others, hook = sys.argv[1], sys.argv[2].split(), sys.argv[3]
exec(hook)
server = tf_server.start(own, others, tf.ConfigProto())
for machine in [own, "localhost"]:
    with tf.Session("grpc://{}:{}".format(machine, server.target.rpartition(":")[2])) as session:
        assert session.run(tf.constant(3) + 4) == 7
print(server.target.rpartition(":")[2], flush=True)
sys.stdin.read()
"""
WITHOUT_BIND = "tf_server._bind_to_device = lambda *_: False"  # as in Linux before 5.7 without CAP_NET_RAW


class Server(NamedTuple):
    port: int
    process: Any


@pytest.fixture(scope="module")
def networks() -> Iterator[Networks]:
    with two_networks() as made:
        yield made


@contextlib.contextmanager
def server(networks: Networks, own: str, others: str = "", hook: str = "", *wrapper: str) -> Iterator[Server]:
    command = inside(networks.own, *wrapper, sys.executable, "-W", "ignore", "-c", SERVER, own, others, hook)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, universal_newlines=True, cwd=ROOT, **pipes)  # type: ignore[call-overload]
    try:
        line = process.stdout.readline() if process.stdout else ""
        assert line.strip().isdigit(), process.communicate()
        yield Server(int(line), process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("wrapper", [(), ("setpriv", "--bounding-set=-all")], ids=["root", "no privilege"])
def test_a_stranger_is_refused_by_the_server_of_a_job_of_one_machine(networks: Networks, wrapper: Any) -> None:
    with server(networks, "127.0.0.1", "", "", *wrapper) as own:
        assert connect(networks.own, "127.0.0.1", own.port) == "connected"
        assert connect(networks.stranger, "10.203.0.1", own.port) == "refused"
        assert connect(networks.stranger, "10.204.0.1", own.port) == "refused"


def test_a_stranger_gets_no_answer_where_a_socket_cannot_be_bound_to_an_interface(networks: Networks) -> None:
    with server(networks, "10.203.0.1", "", WITHOUT_BIND) as own:
        assert connect(networks.own, "10.203.0.1", own.port) == "connected"
        assert connect(networks.stranger, "10.203.0.1", own.port) == "no answer"


def test_the_network_of_the_job_reaches_the_server_and_no_other_does(networks: Networks) -> None:
    with server(networks, "10.203.0.1", "10.203.0.2") as own:
        assert connect(networks.stranger, "10.203.0.1", own.port) == "connected"
        assert connect(networks.stranger, "10.204.0.1", own.port) == "no answer"
        own.process.kill()
        assert (
            f"at port {own.port} of lo and one, and TensorFlow's protocol has no authen"
            in (own.process.communicate()[1])
        )


def test_the_way_to_the_others_counts_where_the_own_name_means_lo(networks: Networks) -> None:
    with server(networks, "localhost", "10.204.0.2") as own:
        assert connect(networks.stranger, "10.204.0.1", own.port) == "connected"
        assert connect(networks.stranger, "10.203.0.1", own.port) == "no answer"


def test_a_server_that_cannot_be_limited_to_one_machine_is_refused(monkeypatch: Any) -> None:
    def fails(*_: Any) -> None:
        raise OSError("Protocol not available")

    monkeypatch.setattr(tf_server, "limit", fails)
    with pytest.raises(ClusterError, match="open to every network of this machine: .* Protocol not available"):
        tf_server.start("127.0.0.1", [], None)


def test_a_server_of_an_unknown_interface_says_that_it_is_open(capfd: Any) -> None:
    tf_server.start("192.0.2.77", ["no-such-machine.invalid"], None)
    assert "of every interface (the interface of 192.0.2.77 is not known" in capfd.readouterr().err


@pytest.mark.long
def test_a_port_that_somebody_was_connected_to_before_the_limit_is_given_up(monkeypatch: Any) -> None:
    callers = []

    def limit_late(port: int, interfaces: Any) -> None:
        if not callers:
            callers.append(socket.create_connection(("127.0.0.1", port)))

    monkeypatch.setattr(tf_server, "limit", limit_late)
    server = tf_server.start("127.0.0.1", [], None)
    assert callers[0].getpeername()[1] != int(server.target.rpartition(":")[2])
    callers[0].close()


@pytest.mark.parametrize("address, name", [("127.0.1.1", "lo"), ("[::1]", "lo"), ("192.0.2.77", None)])
def test_the_interface_of_an_address(address: str, name: Any) -> None:
    assert tf_server.interface_of(address) == name
