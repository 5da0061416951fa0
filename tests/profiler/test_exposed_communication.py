"""Exposed communication: what of a device's collectives is not covered by its computation."""

import pytest
import tensorflow.compat.v1 as tf

from epl.profiler import exposed_communication, step_stats
from epl.profiler.exposed_communication import Exposure, exposed_share
from epl.profiler.roles import Role, RoleKind
from epl.profiler.step_stats import Execution
from tests.parallel.in_process import Linear, error_text

GPU = "/device:GPU:0"


class FakeRoles:
    """Ops named like a kind of role have it."""

    def of(self, op, device, op_type):
        return Role(op, 0, None, None, "")


def exposed(*ran):
    """(communicates, is exposed) of ops (kind, type, start, end, stream), nanoseconds."""
    executions = [Execution(kind, GPU, start, end, op_type, stream) for kind, op_type, start, end, stream in ran]
    collectives, computes = exposed_communication._busy(executions, FakeRoles())
    length = exposed_communication._length(collectives)
    return length, length - exposed_communication._overlap(collectives, computes)


def computes(start, end, stream="", op_type="MatMul", kind=RoleKind.FORWARD):
    return (kind, op_type, start, end, stream)


def collective(start, end):
    return (RoleKind.COLLECTIVE, "EplAllReduce", start, end, "")


@pytest.mark.parametrize(
    "ran, expected",
    [
        ([collective(0, 10)], (10, 10)),
        ([collective(0, 10), computes(0, 10)], (10, 0)),
        ([collective(0, 10), computes(3, 5), computes(4, 6)], (10, 7)),  # 3 to 6 is covered
        ([collective(0, 10), collective(5, 15), computes(8, 30)], (15, 8)),  # at the same time counts once
        ([collective(0, 10), collective(20, 30), computes(5, 25)], (20, 10)),
        ([collective(10, 20), computes(0, 10), computes(20, 30)], (10, 10)),
        ([computes(0, 10)], (0, 0)),
    ],
)
def test_time_that_computation_covers_is_not_exposed(ran, expected):
    assert exposed(*ran) == expected


@pytest.mark.parametrize("op_type", ["IteratorGetNext", "_Recv", "_HostRecv", "_Send"])
def test_an_op_that_waits_covers_nothing(op_type):
    assert exposed(collective(0, 10), computes(0, 10, op_type=op_type)) == (10, 10)


def test_a_transfer_covers_nothing():
    assert exposed(collective(0, 10), computes(0, 10, kind=RoleKind.TRANSFER)) == (10, 10)


def test_on_a_gpu_the_kernels_count_and_not_their_launches():
    assert exposed(collective(0, 10), computes(0, 10), computes(8, 12, "stream:7")) == (10, 8)


def of_gpu(*ran):
    """A record as TensorFlow 1.15 writes it: one op on GPU 0, and (name, start, end) in its streams, microseconds."""
    metadata = tf.RunMetadata()
    launched = metadata.step_stats.dev_stats.add(device="/job:localhost/replica:0/task:0" + GPU)
    launched.node_stats.add(node_name="a", timeline_label="a = MatMul(x)", all_start_micros=1, all_end_rel_micros=30)
    for stream in (GPU + "/stream:all", "/gpu:0 (NVIDIA H100)/context#0/stream#1:Kernel"):
        records = metadata.step_stats.dev_stats.add(device=stream)
        for name, start, end in ran:
            records.node_stats.add(node_name=name, all_start_micros=start, all_end_rel_micros=end - start)
    return [one for one in step_stats.executions(metadata) if one.device.endswith(GPU)]


@pytest.mark.parametrize(
    "name, communicates, is_exposed",
    [
        ("a:MatMul::volta_sgemm_128x64_nn", 10, 5),
        ("volta_sgemm_128x64_nn", 10, 5),
        ("void Eigen::internal::EigenMetaKernel<float>", 10, 5),
        ("nccl_memcpy/a:MatMul::volta_sgemm_128x64_nn", 10, 5),  # the name of an op says nothing
        ("MemcpyHtoD", 10, 10),
        ("a:MatMul::MemcpyDtoD", 10, 10),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", 15, 15),
        ("void NcclKernel<a::b>", 15, 15),
        ("a:MatMul::_Z21ncclBroadcastKernel", 15, 15),
    ],
)
def test_in_the_streams_of_a_gpu_copies_and_nccl_compute_nothing(name, communicates, is_exposed):
    ran = of_gpu(("ncclKernel_Broadcast_RING_LL_Sum_int8_t", 10, 20), (name, 15, 25))
    collectives, computes = exposed_communication._busy(ran, FakeRoles())
    length = exposed_communication._length(collectives) // 1000
    covered = exposed_communication._overlap(collectives, computes) // 1000
    assert (length, length - covered) == (communicates, is_exposed)


def test_the_share_is_the_mean_of_the_devices():
    found = [Exposure("a", 2.0, 1.0, 0.5), Exposure("b", 2.0, 1.0, 1.0)]
    assert exposed_share(found) == pytest.approx(0.375) and exposed_share([]) == 0.0


def trace(train_op, feed):
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(train_op, feed)
        return step_stats.run(sess, train_op, feed)[1], sess.graph


def test_devices_of_a_traced_step(init):
    init(2)
    model = Linear()
    found = exposed_communication.exposures(*trace(model.minimize(), model.feed()))
    assert [one.device[-5:] for one in found] == ["CPU:0", "CPU:1"]
    assert all(0 < one.communication_s <= one.step_s and 0 <= one.exposed_s <= one.communication_s for one in found)
    assert 0 < exposed_share(found) <= 1


def test_one_device_communicates_nothing(init):
    init(1)
    model = Linear()
    (one,) = exposed_communication.exposures(*trace(model.minimize(), model.feed()))
    assert one.communication_s == one.exposed_s == 0 < one.step_s


def test_a_plain_graph_has_no_devices_of_a_plan(init):
    init(2, annotate=False)
    model = Linear()
    assert exposed_communication.exposures(*trace(model.minimize(), model.feed())) == []


def test_a_run_that_was_not_traced_is_refused():
    text = error_text(exposed_communication.exposures, tf.RunMetadata(), tf.Graph())
    assert text.startswith("ValueError") and "FULL_TRACE" in text
