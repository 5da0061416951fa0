"""The table of all configuration keys: section, type, default, unit and meaning.

This is data. `epl/config/config.py` turns it into objects, `tools/gen_config_docs.py` into `docs/config.md`.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from epl.config.types import (
    BalanceType,
    BoolType,
    ChoiceType,
    DeviceListType,
    ExplainType,
    FractionType,
    IntType,
    LossScaleType,
    MachineType,
    PathType,
    SecondsType,
    ValueType,
)
from epl.utils.job_variables import JOB_HOSTS, JOB_NAME, JOB_PORT, SECRET, SECRET_FILE


class Key(NamedTuple):
    """One configuration key."""

    name: str  # "section.key"
    type: ValueType
    default: Any
    unit: str  # of the value; empty for flags and names
    help: str


def section_of(name: str) -> str:
    """Returns the section of a key: "pipeline" of "pipeline.num_micro_batch"."""
    return name.split(".", 1)[0]


def env_name(name: str) -> str:
    """Returns the environment variable of a key: "EPL_PIPELINE_NUM_MICRO_BATCH" of "pipeline.num_micro_batch"."""
    return "EPL_" + name.replace(".", "_").upper()


SECTIONS: Tuple[Tuple[str, str], ...] = (
    ("auto", "Automatic parallelism"),
    ("io", "Distribution of input files"),
    ("communication", "Collectives between replicas"),
    ("pipeline", "Pipeline stages and gradient accumulation"),
    ("gradient_checkpoint", "Recomputation of activations"),
    ("zero", "Sharding of optimizer state, gradients and weights over replicas"),
    ("offload", "Weights in host memory"),
    ("amp", "Automatic mixed precision"),
    ("batch_norm", "Statistics of batch norm"),
    ("cluster", "Devices of the job"),
    ("optimizer", "Application of gradients"),
    ("replicate", "What replicas compute of all rows"),
    ("debug", "Checks during training"),
)

KEYS: Tuple[Key, ...] = (
    Key(
        "auto.auto_parallel",
        BoolType(),
        False,
        "",
        "Cut the model into stages automatically. Excludes strategy scopes in the model.",
    ),
    Key(
        "auto.plan_file",
        PathType(),
        "",
        "",
        "File of a strategy, written by epl-plan --save: the model is trained by it. Keys that are not set get the "
        "values that it decided.",
    ),
    Key(
        "auto.planner",
        ChoiceType("stages", "search"),
        "stages",
        "",
        'What EPL decides of what the script leaves open: "stages" those of auto.auto_parallel alone; "search" all: it '
        "simulates plans on auto.machine, and takes the fastest that fits.",
    ),
    Key(
        "auto.machine",
        MachineType(),
        "",
        "",
        "Machine that plans are simulated on: a machine file, or presets such as 4x8*v100-32,eth-50. Empty: presets "
        "for the devices of the job.",
    ),
    Key(
        "auto.rows",
        IntType(minimum=0),
        0,
        "rows",
        "Rows of the global batch that plans are simulated with; 0: those of the script, or 32 for each replica if it "
        "leaves them open.",
    ),
    Key(
        "auto.profile",
        ChoiceType("", "cached", "measure"),
        "",
        "",
        'Times of single ops for simulated plans: "measure" measures each different op once, and keeps its time in a '
        'file; "cached" uses what the file has; "" computes them from the rates of the machine.',
    ),
    Key(
        "auto.memory_fraction",
        FractionType(),
        0.9,
        "",
        "Part of the memory of a device that a plan of the search may use.",
    ),
    Key(
        "auto.budget",
        IntType(minimum=0),
        60,
        "seconds",
        "Time of a search: what it always simulates takes what it needs, and all else stops after that time. It ends "
        "earlier when nothing gets better. 0: what it always simulates, alone.",
    ),
    Key(
        "auto.steps",
        IntType(minimum=0, unset=-1),
        -1,
        "steps",
        "Steps of a search for plans by blocks, after all candidates are simulated, in place of auto.budget: the same "
        "number finds the same plan; None or -1 when it is not set.",
    ),
    Key(
        "auto.seed",
        IntType(minimum=0),
        0,
        "",
        "Seed of the random changes that a search for plans by blocks tries.",
    ),
    Key(
        "auto.trials",
        IntType(minimum=0),
        0,
        "plans",
        "How many of the best plans of a search epl-plan tries: each trains a few steps on the devices of this "
        "computer, and the fastest is taken. For the command alone: a job refuses it.",
    ),
    Key(
        "auto.balance",
        BalanceType("even", "speed"),
        "even",
        "",
        'Rows of each replica: "even", or proportions, one number for each replica of the job in the order of the '
        'ranks, such as "5:3:1". "speed": proportions by the speed and memory of the devices of auto.machine.',
    ),
    Key(
        "auto.explain",
        ExplainType(),
        "",
        "",
        'What worker 0 tells of the plan when it is made, with a simulation of a step: "text" on standard error, or a '
        "file, path.html or path.json.",
    ),
    Key("io.drop_last_files", BoolType(), False, "", "Drop the last files when they cannot be divided evenly."),
    Key(
        "io.unbalanced_io_slicing",
        BoolType(),
        False,
        "",
        "Allow workers to get different numbers of files when they cannot be divided evenly.",
    ),
    Key("io.slicing", BoolType(), False, "", "Give each worker its own part of the list of input files."),
    Key(
        "communication.sparse_as_dense",
        BoolType(),
        False,
        "",
        "Turn sparse gradients (IndexedSlices) into dense ones before they are reduced.",
    ),
    Key(
        "communication.ordered_sparse_sums",
        ChoiceType("auto", "on", "off"),
        "auto",
        "",
        "Sum the rows of sparse gradients by index in a fixed order before they are applied, so that replicas stay "
        'equal to the last bit. "auto" does so where TensorFlow adds them in any order: on GPUs, and with TensorFlow '
        '2. With "off" a warning names the variables whose replicas drift.',
    ),
    Key(
        "communication.max_splits",
        IntType(minimum=1),
        5,
        "buckets",
        "Largest number of buckets into which gradients are fused for the all-reduce.",
    ),
    Key(
        "communication.num_communicators",
        IntType(minimum=1),
        2,
        "communicators",
        "Number of communicators over which the gradient buckets are spread; those of different communicators overlap.",
    ),
    Key(
        "communication.fp16",
        BoolType(),
        False,
        "",
        "Send float32 gradients as float16, and the tensors of all-to-alls in epl.split as well.",
    ),
    Key(
        "communication.fp16_scale",
        IntType(minimum=1),
        128,
        "factor",
        "With communication.fp16: gradients are multiplied by this before the conversion to float16 and divided by it "
        "after the collective. Gradients that would overflow take a smaller power of two, which all ranks agree on.",
    ),
    Key(
        "communication.hierarchy",
        ChoiceType("auto", "on", "off"),
        "auto",
        "",
        "Hierarchical collectives of workers on CPUs: between two machines each byte goes once, not once for each "
        "worker. "
        '"on" is refused where the machines have not equally many workers, at least two. "auto": where they have, and '
        "the link inside a machine is faster than a worker's share of the network (auto.machine, or presets).",
    ),
    Key(
        "communication.clip_after_allreduce",
        BoolType(),
        False,
        "",
        "All-reduce the gradients as tf.gradients returns them, so that clipping and norms see the gradients of all "
        "replicas. By default each replica clips its own.",
    ),
    Key(
        "communication.gradients_reduce_method",
        ChoiceType("mean", "sum"),
        "mean",
        "",
        "How gradients of replicas and micro batches are combined.",
    ),
    Key(
        "communication.allow_different_graphs",
        BoolType(),
        False,
        "",
        "Train although the workers compute or update the model in different ways: the differences are intended. By "
        "default the first difference is an error before the first step.",
    ),
    Key(
        "communication.start_timeout",
        SecondsType(),
        300.0,
        "seconds",
        "How long a process waits for the others when it first needs them, at its first session that trains. Then it "
        "fails and names the missing ones. epl-launch without --machine_list sets it to 21600 through the environment: "
        "it ends all workers when one fails, so a worker may prepare data for hours.",
    ),
    Key(
        "communication.stall_warning",
        SecondsType(),
        60.0,
        "seconds",
        "A collective, a run over several workers, or any other wait for workers that lasts longer than this is "
        "reported on stderr: which workers are missing, at which operation, and which were not heard.",
    ),
    Key(
        "communication.timeout",
        SecondsType(),
        1800.0,
        "seconds",
        "A wait for other workers fails when it lasts longer than this: a collective, a run over several workers, a "
        "save. A worker that was not heard for so long counts as lost, whatever the others wait for.",
    ),
    Key(
        "pipeline.num_stages",
        IntType(minimum=1, unset=-1),
        -1,
        "stages",
        "Number of stages into which auto.auto_parallel cuts the model; None or -1 when it is not set.",
    ),
    Key(
        "pipeline.num_micro_batch",
        IntType(minimum=1),
        1,
        "micro batches",
        "Micro batches of one training step: gradient accumulation with one TaskGraph, a pipeline with several.",
    ),
    Key(
        "pipeline.strategy",
        ChoiceType("PreferForward", "PreferBackward", "PreferBackwardOptimizer"),
        "preferbackward",
        "",
        "Schedule of a pipeline: PreferForward is GPipe, PreferBackward is 1F1B, PreferBackwardOptimizer keeps one "
        "more micro batch in flight per stage.",
    ),
    Key(
        "gradient_checkpoint.type",
        ChoiceType("", "collection", "auto"),
        "",
        "",
        'Which activations are kept; the others are recomputed. "collection" keeps those that the model puts in the '
        'collection "checkpoints", "auto" chooses them, "" recomputes nothing.',
    ),
    Key(
        "gradient_checkpoint.end_taskgraph",
        IntType(minimum=0, unset=-1),
        -1,
        "index of a TaskGraph",
        'With gradient_checkpoint.type "auto": the last TaskGraph in which activations are recomputed; -1 for all.',
    ),
    Key(
        "gradient_checkpoint.memory_budget",
        IntType(minimum=0),
        0,
        "bytes",
        'With gradient_checkpoint.type "auto": the memory for the activations of one micro batch in one stage. EPL '
        "recomputes the fewest FLOPs that fit in it. 0: it keeps as few activations as possible.",
    ),
    Key(
        "gradient_checkpoint.check_gradients",
        BoolType(),
        False,
        "",
        "Check the gradients of the recomputing graph against those of the plain one.",
    ),
    Key(
        "zero.level",
        ChoiceType("", "v0", "v1", "v2"),
        "",
        "",
        '"v0" shards the optimizer state over the replicas, "v1" the gradients too, "v2" the weights too, "" nothing.',
    ),
    Key("offload.level", ChoiceType("", "v0"), "", "", '"v0" keeps all weights in host memory, "" none.'),
    Key(
        "amp.level",
        ChoiceType("", "O1"),
        "",
        "",
        '"O1" computes in half precision where it is safe and keeps the weights in float32, "" computes in the types '
        "of the model.",
    ),
    Key(
        "amp.debug_log",
        BoolType(),
        False,
        "",
        'Log which types of operations stay in float32. With amp.loss_scale "dynamic", also log the first gradient '
        "that was not finite, for each skipped step.",
    ),
    Key(
        "amp.dtype",
        ChoiceType("float16", "bfloat16"),
        "float16",
        "",
        "With amp.level: the type to compute in. Operations for which TensorFlow has no kernel of that type stay in "
        "float32.",
    ),
    Key(
        "amp.loss_scale",
        LossScaleType(),
        "dynamic",
        "factor",
        'With amp.level: the factor on the loss before differentiation; "dynamic" adapts it to the gradients.',
    ),
    Key(
        "batch_norm.sync",
        BoolType(),
        False,
        "",
        "Normalize by the statistics of the rows of all replicas, forward and backward. Off: each replica takes those "
        "of its own rows.",
    ),
    Key(
        "cluster.device_place_prefer_intra_node",
        BoolType(),
        True,
        "",
        "Place a model replica on the devices of one worker first (row-major order) rather than across workers "
        "(column-major order).",
    ),
    Key(
        "cluster.device_order",
        DeviceListType(),
        "",
        "indices of devices",
        'The devices of each process in the order in which replicas and stages take them, such as "1,0": all of them. '
        'Empty: as they are numbered, or, with auto.planner "search" and devices of several kinds, the best order.',
    ),
    Key(
        "cluster.run_visible_devices",
        DeviceListType(),
        "",
        "indices of GPUs",
        "The GPUs that this process uses, of those that CUDA_VISIBLE_DEVICES leaves. Usually set by the scheduler.",
    ),
    Key(
        "cluster.colocate_split_and_replicate",
        BoolType(),
        False,
        "",
        "Place all TaskGraphs on all devices of the job, smaller scopes of epl.replicate on some. Off: each TaskGraph "
        "has devices of its own, a split too.",
    ),
    Key(
        "cluster.device_type",
        ChoiceType("auto", "gpu", "cpu"),
        "auto",
        "",
        '"gpu" uses the visible GPUs, "cpu" virtual CPU devices in their place, "auto" GPUs if there are any.',
    ),
    Key(
        "cluster.num_virtual_devices",
        IntType(minimum=0, maximum=1024),
        0,
        "devices",
        "Virtual CPU devices of each process when it uses no GPU. 0 means 1. epl-launch --gpu_per_worker sets it "
        "through the environment.",
    ),
    Key(
        "optimizer.num_apply_group",
        IntType(minimum=1),
        1,
        "groups",
        "Apply gradients in this many groups, one after the other, to save temporary memory.",
    ),
    Key(
        "replicate.batch",
        ChoiceType("each", "all"),
        "each",
        "",
        'Rows that the loss means: "each" those of each replica, and the gradients are averaged; "all" those of all '
        "replicas together, also where it divides by a sum over rows, compares rows with each other, or takes "
        "statistics of them.",
    ),
    Key(
        "replicate.state",
        ChoiceType("all", "each"),
        "all",
        "",
        "Rows of what a step writes to variables from the batch, such as a codebook, a memory bank or a moving mean: "
        "those of all replicas, so that each replica writes what one device would; or those of each replica.",
    ),
    Key(
        "debug.check_replicas",
        IntType(minimum=0),
        0,
        "steps",
        "After every so many training steps, compare the variables of all replicas, bit by bit. 0 does not compare.",
    ),
    Key(
        "debug.replicas_differ",
        ChoiceType("error", "warn"),
        "error",
        "",
        "What debug.check_replicas does about a difference: end the job, or warn each time.",
    ),
)

# Keys of Whale, the first name of EPL, had no sections. Old key -> the keys that it sets and their values; None: the
# value of the old key.
WHALE_KEYS: Dict[str, Dict[str, Optional[bool]]] = {
    "num_micro_batch": {"pipeline.num_micro_batch": None},
    "num_task_graph": {"pipeline.num_stages": None, "auto.auto_parallel": True},
}

# Keys that set a feature of training. If one of them is set, a model without annotation is a TaskGraph.
TRAINING_KEYS = (
    "auto.balance",
    "gradient_checkpoint.type",
    "zero.level",
    "offload.level",
    "amp.level",
    "batch_norm.sync",
    "replicate.batch",
    "optimizer.num_apply_group",
    "pipeline.num_micro_batch",
    "communication.num_communicators",
    "communication.sparse_as_dense",
    "communication.ordered_sparse_sums",
    "communication.max_splits",
    "communication.hierarchy",
    "communication.fp16",
    "communication.fp16_scale",
    "communication.clip_after_allreduce",
    "communication.gradients_reduce_method",
)

KEY_BY_NAME: Dict[str, Key] = {key.name: key for key in KEYS}
KEY_BY_ENV: Dict[str, Key] = {env_name(key.name): key for key in KEYS}

# Variables that begin with EPL_ and are no configuration keys; they are never reported as misspelled.
OTHER_ENV = frozenset(
    ["EPL_LISTEN_FD", "EPL_LAUNCHER_PIPE", "EPL_TASK_DIR", "EPL_EXPLAIN", "EPL_DUMP_GRAPH", "EPL_SKIP_PASS"]
    + ["EPL_VERIFY", "EPL_NATIVE", "EPL_TF"]
    + [SECRET, SECRET_FILE, JOB_NAME, JOB_HOSTS, JOB_PORT]
)


def keys_of(section: str) -> List[Key]:
    """Returns the keys of a section in the order of the table."""
    return [key for key in KEYS if section_of(key.name) == section]
