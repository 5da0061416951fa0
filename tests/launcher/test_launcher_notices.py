"""What TensorFlow says about itself stays in the log; whatever else comes, also what looks alike, is shown."""

import pytest

from epl.launcher.notices import NoticeFilter

CPP = b"2026-11-25 17:50:31.123456: I tensorflow/core/platform/cpu_feature_guard.cc:142] Your CPU supports AVX2 FMA\n"
FUTURE = (
    b"/venv/lib/python3.7/site-packages/tensorflow/python/framework/dtypes.py:516: FutureWarning: Passing (type, 1) or "
    b"'1type' as a synonym of type is deprecated\n  _np_qint8 = np.dtype([(\"qint8\", np.int8, 1)])\n"
)
NAME = (
    b"WARNING:tensorflow:From a.py:7: The name tf.Session is deprecated. Please use tf.compat.v1.Session instead.\n\n"
)
CALL = (
    b"WARNING:tensorflow:From a.py:9: dense (from tensorflow.python.layers.core) is deprecated and will be removed "
    b"in a future version.\nInstructions for updating:\nUse keras.layers.Dense instead.\n"
)
ABSL = CALL.replace(b"WARNING:tensorflow:", b"W1125 17:50:31.123456 140123456789 deprecation.py:323] ")
TWO_LINES = CALL.replace(
    b"Use keras.layers.Dense instead.", b"Use eager execution and: \n`tf.data.TFRecordDataset(path)`"
)
CROSS_ENTROPY = CALL.replace(
    b"Use keras.layers.Dense instead.",
    b"\nFuture major versions of TensorFlow will allow gradients to flow\n"
    b"into the labels input on backprop by default.\n\nSee `tf.nn.softmax_cross_entropy_with_logits_v2`.\n",
)
KERAS = (
    b"WARNING:tensorflow:OMP_NUM_THREADS is no longer used by the default Keras config. To configure the number of "
    b"threads, use tf.config.threading APIs.\n"
)
ARGUMENT = CALL.replace(b"dense (from tensorflow.python.layers.core)", b"calling f (from tensorflow.ops) with axis=1")
ABSL_BEGINS = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
ABSL_INFO = b"I0000 00:00:1795852190.166932    8363 cudart_stub.cc:31] Could not find cuda drivers on your machine\n"
INSTRUCTIONS = (
    b"I0000 00:00:1795852190.288341    8363 cpu_feature_guard.cc:227] This binary is optimized to use available CPU "
    b"instructions.\nTo enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.\n"
)
NO_DRIVER = (
    b"E0000 00:00:1795852200.637531    8363 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed "
    b"call to cuInit: UNKNOWN ERROR (303)\n"
)
ONE_DNN = CPP.replace(b"tensorflow/core/platform/cpu_feature_guard.cc", b"external/local_tsl/tsl/util/port.cc")
TWICE = (
    b"2026-11-29 06:39:39.757623: E external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register "
    b"cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered\n"
)
NO_TENSORRT = (
    b"2026-11-29 06:39:41.785117: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not "
    b"find TensorRT\n"
)
LAYERS = (
    b"/home/me/train.py:12: UserWarning: `tf.layers.dense` is deprecated and will be removed in a future version. "
    b"Please use `tf.keras.layers.Dense` instead.\n  x = tf.layers.dense(x, 4)\n"
)
OF_TENSORFLOW_2 = [ABSL_BEGINS, ABSL_INFO, INSTRUCTIONS, NO_DRIVER, TWICE, NO_TENSORRT, ONE_DNN, LAYERS]
NOTICES = [*OF_TENSORFLOW_2, CPP, FUTURE, NAME, CALL, ARGUMENT, ABSL, TWO_LINES, CROSS_ENTROPY, KERAS]
SHOWN = [
    CPP.replace(b": I ", b": W "),
    CPP.replace(b": I ", b": E "),
    CPP.replace(b": I ", b": F "),
    CPP.replace(b"tensorflow/", b"mine/"),
    b"loss " + CPP,
    CPP.partition(b" I ")[0] + b" I tensorflow/core/kernels/logging_ops.cc:166] loss 1.5\n",  # of tf.print
    FUTURE.replace(b"/tensorflow/", b"/mine/"),
    FUTURE.replace(b"FutureWarning", b"RuntimeWarning"),
    b"/home/me/tensorflow/models/train.py:3: FutureWarning: the default will change\n  f(shuffle=True)\n",
    FUTURE.partition(b"\n")[0] + b"\nloss 1.0\n",
    NAME.replace(b"is deprecated", b"has a new default"),
    CALL.replace(b"WARNING:tensorflow", b"WARNING:epl"),
    CALL.replace(b"Instructions for updating:\n", b""),
    CALL.replace(b"from tensorflow.python.layers.core", b"from __main__"),  # tf.contrib.framework.deprecated
    CALL + b"    and a second line of instructions\n",
    CALL.replace(b"Use keras.layers.Dense", b"Use tf.print instead of tf.Print. Note") + b"a second line\n",
    TWO_LINES[:-10],
    b"WARNING:tensorflow:It seems that global step (tf.train.get_global_step) has not been increased.\n",
    b"ERROR:tensorflow:Error recorded from training loop\n",
    ABSL_INFO.replace(b"I0000", b"W0000"),
    ABSL_INFO.replace(b"cudart_stub", b"logging_ops"),  # of tf.print
    NO_DRIVER.replace(b"UNKNOWN ERROR (303)", b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    LAYERS.replace(b"tf.layers.dense", b"my.dense"),
    CPP.rstrip(b"\n"),
]


@pytest.mark.parametrize("notice", NOTICES)
def test_a_notice_is_left_out_between_other_lines(notice):
    assert NoticeFilter({}).shown(b"step 1\n" + notice + notice + b"step 2\n") == b"step 1\nstep 2\n"


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_no_notice_is_shown(text):
    assert NoticeFilter({}).shown(text) == text


@pytest.mark.parametrize(
    "name,notice",
    [
        ("TF_CPP_MIN_LOG_LEVEL", CPP),
        ("TF_CPP_MIN_VLOG_LEVEL", CPP),
        ("TF_CPP_VMODULE", CPP),
        ("TF_CPP_MIN_LOG_LEVEL", ABSL_BEGINS + ABSL_INFO + NO_DRIVER),
        ("PYTHONWARNINGS", FUTURE),
        ("PYTHONWARNINGS", LAYERS),
    ],
)
def test_what_the_user_has_set_counts(name, notice):
    assert NoticeFilter({name: "0"}).shown(notice + CALL) == notice


def test_notices_are_in_the_log_and_verbose_shows_them(run, log, tmp_path):
    text = b"".join(NOTICES + SHOWN)
    (tmp_path / "text").write_bytes(text)
    shown = run("cat text", workers=1).output
    assert log(0).encode() == text
    assert [line for line in b"".join(SHOWN).decode().splitlines() if f"[worker 0] {line}\n" not in shown] == []
    assert "[worker 0] " + NAME.decode().splitlines()[0] not in shown
    verbose = run("cat text", "--verbose", workers=1, log_dir="again").output
    assert [line for line in text.decode().splitlines() if f"[worker 0] {line}\n" not in verbose] == []


def test_a_variable_for_the_workers_counts(run, tmp_path):
    (tmp_path / "text").write_bytes(CPP)
    assert CPP.decode() not in run("cat text", workers=1).output
    assert CPP.decode() in run("cat text", "--env", "TF_CPP_MIN_LOG_LEVEL=0", workers=1, log_dir="again").output
