"""Ports of the workers: theirs from before the start, and no one else's."""

import json
import socket

import pytest

from epl.launcher import plan as launcher_plan

# Seconds; each of these starts processes.
pytestmark = pytest.mark.timeout(60)

ACCEPT = """
import json, os, socket, sys
config = json.loads(os.environ["TF_CONFIG"])
index, hosts = config["task"]["index"], config["cluster"]["worker"]
listener = socket.socket(fileno=int(os.environ["EPL_LISTEN_FD"]))
assert listener.getsockname() == ("127.0.0.1", int(hosts[index].split(":")[1]))
assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
if index == 0:
    others = [listener.accept()[0].recv(1) for _ in hosts[1:]]
    print(json.dumps([hosts, sorted(each.decode() for each in others)]))
else:
    host, port = hosts[0].split(":")
    socket.create_connection((host, int(port))).sendall(str(index).encode())
"""


def test_each_worker_inherits_its_listening_socket(run, log):
    launch = run(ACCEPT, workers=4, name="job.py")
    assert launch.code == 0, launch.output
    assert json.loads(log(0))[1] == ["1", "2", "3"]


def test_socket_reaches_a_program_that_a_shell_script_starts(run, log, tmp_path):
    (tmp_path / "accept.py").write_text(ACCEPT)
    launch = run("exec 9<$0; python accept.py; exit $?", workers=2)
    assert launch.code == 0, launch.output


def test_worker_inherits_no_socket_but_its_own(run, log):
    run("ls -l /proc/self/fd | grep -c socket:", workers=3)
    assert [log(index) for index in range(3)] == ["1\n"] * 3


def test_launcher_and_guard_keep_no_copy_of_the_sockets(start, until):
    launch = start("echo up; exec sleep 60", workers=2)
    while "up" not in launch.process.stdout.readline():
        pass

    def workers():
        return {pid for pid, command in launch.survivors().items() if command == "sleep 60 "}

    assert until(lambda: len(workers()) == 2)
    assert {pid for pid in launch.survivors() if listens(pid)} == workers()


def listens(pid):
    import psutil

    return any(each.status == psutil.CONN_LISTEN for each in psutil.Process(pid).connections())


def test_ten_launchers_at_once_do_not_collide(start, tmp_path):
    launches = [start(ACCEPT, workers=3, name="job.py", log_dir=f"logs{i}") for i in range(10)]
    for launch in launches:
        assert launch.wait(60) == 0, launch.output
    hosts = [json.loads((tmp_path / f"logs{i}/0/stderr_0.log").read_text())[0] for i in range(10)]
    assert all(len(set(each)) == 3 for each in hosts)


def test_port_can_be_given_to_a_server_that_binds_it_itself():
    """As docs/launcher.md says: a shutdown frees the port although others (a shell) hold copies of the socket."""
    (port,) = launcher_plan.reserve_ports(1)
    copy = socket.socket(fileno=port.fd).dup()
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port.number))
            raise AssertionError("the port was free although it is reserved")
        except OSError:
            pass
        copy.shutdown(socket.SHUT_RDWR)
        listener.bind(("127.0.0.1", port.number))
        listener.listen(1)
    copy.close()


@pytest.mark.parametrize(
    "machine, bound",
    [("127.0.0.2", "127.0.0.2"), ("localhost", "0.0.0.0"), ("203.0.113.9", "0.0.0.0"), ("no.such", "0.0.0.0")],
)
def test_a_port_for_other_machines_is_open_where_they_come_from(machine, bound):
    port = launcher_plan.reserve_port(machine)
    with socket.socket(fileno=port.fd) as listener:
        assert listener.getsockname() == (bound, port.number)
