"""The fragments of the documentation, the overview and the slides, in their own order, with small models filled in.

Imports, configuration, annotations and calls stand as they are printed, but for `import tensorflow as tf`, which is
`tensorflow.compat.v1`, as TensorFlow 2 needs; a number of devices that is printed is that of the job. What a fragment
calls (`model()`, `resnet()`) is a function of `Parts`. Plain TensorFlow runs the same fragments with a module `epl`
that does nothing.
"""

# The fragments import where they are printed to.
# ruff: noqa: I001

import contextlib
import sys
import types
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from tests.parity.context import Context
from tests.seeds.models import STEPS, Parts

Fragment = Callable[[Parts, int], Optional[tf.Tensor]]


class Entry(NamedTuple):
    """A fragment, and how its job shares data.

    Attributes:
        run: takes the parts of a model and the number of devices of the job.
        divides: whether the devices of a process divide one batch.
        stages: devices of one replica.
        micro_batches: of a pipeline; of gradient accumulation there is one.
        reads: of a batch in one step: how many runs accumulate gradients.
        losses: how near those come to one device, as a part of their value.
        weights: how near those come to one device, as a part of the largest; half precision is less exact.
    """

    run: Fragment
    divides: bool = False
    stages: int = 1
    micro_batches: int = 1
    reads: int = 1
    losses: float = 2e-6
    weights: float = 2e-5


FRAGMENTS: Dict[str, Entry] = {}


def fragment(**facts: Any) -> Callable[[Fragment], Fragment]:
    """Puts a fragment in the table under its name."""

    def enter(function: Fragment) -> Fragment:
        FRAGMENTS[function.__name__] = Entry(function, **facts)
        return function

    return enter


# ---- Documentation, chapters 1, 4, 5 and 7, and the overview: data parallelism


@fragment()
def data_parallelism(parts: Parts, devices: int) -> None:
    import epl

    epl.init()
    with epl.replicate(device_count=1):
        parts.model()


@fragment()
def default_strategy(parts: Parts, devices: int) -> None:
    import epl

    epl.init()
    epl.set_default_strategy(epl.replicate(device_count=1))
    parts.model()


# ---- Documentation, chapters 1, 5 and 8, and the overview: pipelines


@fragment(stages=2, micro_batches=4)
def pipeline(parts: Parts, devices: int) -> None:
    import epl

    config = epl.Config({"pipeline.num_micro_batch": 4})
    epl.init(config)
    with epl.replicate(device_count=1, name="stage_0"):
        parts.model_part1()

    with epl.replicate(device_count=1, name="stage_1"):
        parts.model_part2()


@fragment(stages=2, micro_batches=4)
def pipeline_of_default_strategies(parts: Parts, devices: int) -> None:
    import epl

    epl.init(epl.Config({"pipeline.num_micro_batch": 4}))

    # model annotation
    epl.set_default_strategy(epl.replicate(1))
    parts.model_stage0()
    epl.set_default_strategy(epl.replicate(1))
    parts.model_stage1()


# ---- Documentation, chapters 1, 4, 5 and 9, and the overview: tensor model parallelism


@fragment()
def split(parts: Parts, devices: int) -> None:
    import epl

    epl.init()
    with epl.split(device_count=devices):
        parts.model()


@fragment(divides=True)
def large_scale_classification(parts: Parts, devices: int) -> None:
    import epl

    config = epl.Config({"cluster.colocate_split_and_replicate": True})
    epl.init(config)
    with epl.replicate(devices):
        parts.resnet()

    with epl.split(devices):
        parts.classification()


@fragment(divides=True)
def moe_transformer(parts: Parts, devices: int) -> None:
    import epl

    config = epl.Config({"cluster.colocate_split_and_replicate": True})
    epl.init(config)
    total_gpu_num = epl.Env.get().cluster.total_gpu_num

    epl.set_default_strategy(epl.replicate(total_gpu_num))

    parts.attention_and_gating()

    with epl.split(total_gpu_num):
        parts.moe_variable_define()

        parts.moe_calculation_define()


# ---- Documentation, chapter 6: configuration


def _configured(name: str, param_dict: Dict[str, Any], **facts: Any) -> None:
    """A fragment of the configuration: the model after it has no annotation."""

    def run(parts: Parts, devices: int) -> None:
        import epl

        config = epl.Config(param_dict)
        epl.init(config)
        parts.model()

    FRAGMENTS[name] = Entry(run, **facts)


_configured("config_micro_batches", {"pipeline.num_micro_batch": 4}, reads=4)
_configured("config_gradient_checkpoint", {"gradient_checkpoint.type": "auto"})
_configured("config_zero", {"zero.level": "v1"})
_configured("config_offload", {"offload.level": "v0"})
_configured("config_amp_dynamic", {"amp.level": "O1", "amp.loss_scale": "dynamic"}, losses=1e-5, weights=4e-2)
_configured("config_amp_fixed", {"amp.level": "O1", "amp.loss_scale": 128}, losses=1e-5, weights=4e-2)
_configured("config_apply_groups", {"optimizer.num_apply_group": 30})


@fragment()
def config_checkpoint_collection(parts: Parts, devices: int) -> None:
    import tensorflow.compat.v1 as tf
    import epl

    config = epl.Config({"gradient_checkpoint.type": "collection"})
    epl.init(config)

    # specify a checkpoint tensor
    tensor = parts.op1()
    tf.add_to_collection("checkpoints", tensor)
    parts.model_part2()


# ---- The slides of Whale


@fragment(stages=2, micro_batches=8)
def whale_pipeline(parts: Parts, devices: int) -> None:
    import whale as wh

    wh.init(wh.Config({"num_micro_batch": 8}))
    with wh.replicate(1):
        parts.model_part1()
    with wh.replicate(1):
        parts.model_part2()


@fragment(divides=True)
def whale_hybrid(parts: Parts, devices: int) -> None:
    import whale as wh

    total_gpu = devices
    wh.init()
    with wh.replicate(total_gpu):
        features = parts.resnet50(parts.inputs())
    with wh.split(total_gpu):
        logits = parts.fc(features)
        parts.softmax(logits)


@fragment(stages=0, micro_batches=35)
def whale_m6(parts: Parts, devices: int) -> None:
    import whale as wh

    wh.init(wh.Config({"num_micro_batch": 35, "num_task_graph": devices}))
    # Define M6 model.
    parts.m6_model_def()


@fragment(divides=True)
def whale_m6_moe(parts: Parts, devices: int) -> None:
    import whale as wh

    total_gpus = devices
    wh.init()
    wh.set_default_strategy(wh.replicate(total_gpus))
    combined_weights, dispatch_inputs = parts.gating_dispatch()
    with wh.split(total_gpus):
        parts.moe(combined_weights, dispatch_inputs)


# ---- Where a fragment is tested: chapter or document, section -> name in FRAGMENTS, or a test elsewhere

TABLE: Dict[str, List[str]] = {
    "1.2.1 Data Parallelism": ["data_parallelism"],
    "1.2.2 Pipeline Parallelism": ["pipeline"],
    "1.2.3 Tensor Model Parallelism": ["large_scale_classification"],
    "3.1 EPL Annotation": ["tests/parity/test_quick_start_seed.py"],
    "3.2 Launch a parallel training": ["tests/parity/test_quick_start_seed.py"],
    "4.1.1 replicate": ["data_parallelism"],
    "4.1.2 split": ["split"],
    "4.2 set_default_strategy": ["default_strategy"],
    "5.1 Data Parallelism": ["data_parallelism"],
    "5.2 Pipeline Parallelism": ["pipeline"],
    "5.3.1 Large-scale Image Classification": ["large_scale_classification"],
    "5.3.2 MOE Transformer": ["moe_transformer"],
    "6 Configuration": ["config_micro_batches"],
    "6.2 Gradient Checkpoint": ["config_gradient_checkpoint", "config_checkpoint_collection"],
    "6.3 Zero": ["config_zero"],
    "6.4 Offload": ["config_offload"],
    "6.5 Memory-efficient AMP": ["config_amp_dynamic", "config_amp_fixed"],
    "6.6 Optimizer": ["config_apply_groups"],
    "7 Data Parallelism": ["default_strategy", "tests/parity/test_quick_start_seed.py"],
    "8.2.1 Pipeline parallelism": ["pipeline_of_default_strategies", "tests/parity/test_quick_start_seed.py"],
    "9.2 Distributed Training": ["moe_transformer", "tests/parity/test_quick_start_seed.py"],
    "Overview: Data Parallelism": ["data_parallelism"],
    "Overview: Pipeline Parallelism": ["pipeline"],
    "Overview: Tensor Model Parallelism": ["large_scale_classification"],
    "Slides: Pipeline with 2 TaskGraphs": ["whale_pipeline"],
    "Slides: Hybrid of replicate and split": ["whale_hybrid"],
    "Slides: M6-10B with Pipeline and DP": ["whale_m6"],
    "Slides: M6-MoE-10T": ["whale_m6_moe"],
}


# ---- Running one


class _Nothing(types.ModuleType):
    """A module `epl` or `whale` for plain TensorFlow: its annotations and configurations do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name == "Env":
            env = types.SimpleNamespace(cluster=types.SimpleNamespace(total_gpu_num=1))
            return types.SimpleNamespace(get=lambda: env)
        return lambda *args, **kwargs: contextlib.ExitStack()


@contextlib.contextmanager
def _without_epl(ctx: Context) -> Any:
    if ctx.planned:
        yield
        return
    sys.modules["epl"] = sys.modules["whale"] = _Nothing("epl")
    try:
        yield
    finally:
        del sys.modules["epl"], sys.modules["whale"]


def train(ctx: Context, name: str, written_for: int = 0) -> None:
    """Runs a fragment, an optimizer and a session after it.

    Args:
        ctx: of the process.
        name: of the fragment.
        written_for: so many devices; 0: those of the job.
    """
    entry = FRAGMENTS[name]
    devices = written_for or ctx.workers * ctx.devices
    parts = Parts(_rows_of_a_read(ctx, entry, devices), ctx)
    with _without_epl(ctx):
        entry.run(parts, devices)
        train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(parts.loss, tf.train.get_or_create_global_step())
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for _ in range(STEPS * (entry.reads if ctx.planned else 1)):
                ctx.record(loss=sess.run([parts.loss, train_op])[0])
            ctx.results["variables"] = [sess.run({v.name.partition(":")[0]: v for v in tf.global_variables()})]


def _rows_of_a_read(ctx: Context, entry: Entry, devices: int) -> int:
    """How many rows the fragment reads at once, so that a step has those of one device's batch."""
    if not ctx.planned:
        return Parts.ROWS
    reads = ctx.workers if entry.divides else max(devices // (entry.stages or devices), 1) * entry.micro_batches
    rows, left = divmod(Parts.ROWS, reads * entry.reads)
    assert not left, f"{Parts.ROWS} rows in {reads * entry.reads} batches"
    return rows
