"""What a session without a configuration has: what tf.config was told, and no choice of GPUs that nobody made."""

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

from epl.utils import tf_compat


@pytest.fixture(autouse=True)
def listings(monkeypatch):
    """A machine with two GPUs, of which TensorFlow knows nothing yet; the list grows with each of its listings."""
    found = []

    def list_devices():
        found.append("listing")
        return [b"/physical_device:CPU:0", b"/physical_device:GPU:0", b"/physical_device:GPU:1"]

    listing = getattr(context, "pywrap_tfe", None) or context.pywrap_tensorflow
    monkeypatch.setattr(listing, "TF_ListPhysicalDevices", list_devices)
    monkeypatch.setattr(context, "_context", context.Context())
    return found


def test_it_names_no_devices_and_touches_no_gpu(listings):
    config = tf_compat.default_session_config()
    assert not config.device_count and not config.gpu_options.visible_device_list and not listings
    tf.config.experimental.list_physical_devices()
    assert listings  # as before, when a script asks


def test_it_has_what_tf_config_was_told(listings):
    tf.config.threading.set_intra_op_parallelism_threads(3)
    tf.config.optimizer.set_jit(True)
    config = tf_compat.default_session_config()
    assert config.intra_op_parallelism_threads == 3
    assert config.graph_options.optimizer_options.global_jit_level == tf.OptimizerOptions.ON_1
    assert not listings


def test_a_script_that_looks_at_gpus_has_not_chosen_among_them():
    for gpu in tf.config.experimental.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    config = tf_compat.default_session_config()
    assert "GPU" not in config.device_count and not config.gpu_options.visible_device_list
    assert config.gpu_options.allow_growth


def test_a_choice_among_gpus_is_kept():
    gpus = tf.config.experimental.list_physical_devices("GPU")
    tf.config.experimental.set_visible_devices(gpus[1:], "GPU")
    config = tf_compat.default_session_config()
    assert (config.device_count["GPU"], config.gpu_options.visible_device_list) == (1, "1")


def test_virtual_cpu_devices_are_kept():
    cpu = tf.config.experimental.list_physical_devices("CPU")[0]
    virtual = [tf.config.experimental.VirtualDeviceConfiguration()] * 3
    tf.config.experimental.set_virtual_device_configuration(cpu, virtual)
    config = tf_compat.default_session_config()
    assert config.device_count["CPU"] == 3 and "GPU" not in config.device_count
