"""The public API: names, signatures and defaults that scripts written for EPL rely on, and what `epl.init` refuses."""

import importlib
import inspect
from typing import Any, List, Tuple

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

import epl
from epl.env import Env
from epl.utils.errors import ClusterError, ConfigError
from tests.parallel import in_process

init = in_process.init  # found here by pytest

NEEDED = inspect.Parameter.empty

# What can be called -> its parameters in their order, with their defaults.
SIGNATURES = {
    "epl.init": [("config", None)],
    "epl.Config": [("param_dict", None)],
    "epl.replicate": [("device_count", None), ("name", None)],
    "epl.split": [("device_count", None), ("name", None)],
    "epl.set_default_strategy": [("strategy", NEEDED)],
    "epl.Cluster": [
        ("worker_hosts", None),
        ("ps_hosts", None),
        ("job_name", "worker"),
        ("worker_index", 0),
        ("layout", "all"),
    ],
    "epl.Env.get": [],
    "epl.Env.get_config_proto": [("self", NEEDED), ("allow_growth", True)],
    "epl.Env.get_or_create_server": [("self", NEEDED)],
    "epl.Graph.get": [("may_create", False)],
    "epl.add_to_collection": [("tensor_or_list", NEEDED), ("graph_key", NEEDED)],
    "epl.local_rows": [("global_rows", NEEDED)],
    "epl.get_collection": [("graph_key", NEEDED)],
    "epl.get_all_collections": [],
    "epl.executing_eagerly": [],
    "epl.run": [
        ("fn", NEEDED),
        ("num_workers", 2),
        ("gpu_per_worker", 1),
        ("args", ()),
        ("kwargs", None),
        ("timeout", None),
        ("log_dir", None),
    ],
    "epl.profiler.memory_profiler_hook.MemoryProfilerHook": [
        ("save_steps", 1),
        ("max_steps", 5),
        ("output_dir", "epl_profile"),
        ("visualize", True),
        ("dump_metadata", False),
    ],
    "epl.profiler.memory_profiler_hook.profile_memory": [
        ("run_metadata", NEEDED),
        ("prefix_name", ""),
        ("visualize", True),
    ],
    "epl.profiler.flops.FlopsProfilerHook": [("cmds", "scope")],
    "epl.profiler.flops.profile_flops": [("sess", NEEDED), ("run_metadata", NEEDED), ("cmds", "scope")],
    "epl.profiler.profiler.profile_flops": [("is_shape_unknown", True)],
    "epl.profiler.profiler.profile_memory": [("is_shape_unknown", True)],
    "epl.runtime.saver.ShardingLoader": [
        ("ckpt_file", NEEDED),
        ("var_list", None),
        ("assign_map", None),
        ("sharding_info", None),
    ],
    "epl.runtime.saver.ShardingLoader.restore": [("self", NEEDED)],
    "epl.runtime.saver.MemoryEfficientBuilder": [("sharded_size", 50 * 2**20)],
    "epl.ops.adam_weight_decay_optimizer.AdamWeightDecayOptimizer": [
        ("learning_rate", NEEDED),
        ("weight_decay_rate", 0.0),
        ("beta_1", 0.9),
        ("beta_2", 0.999),
        ("epsilon", 1e-6),
        ("exclude_from_weight_decay", None),
        ("name", "AdamWeightDecayOptimizer"),
    ],
}
# Where scripts for the released EPL import from -> a name that they take.
PATHS = {
    "epl.cluster": "Cluster",
    "epl.config": "Config",
    "epl.env": "Env",
    "epl.ir.graph": "Graph",
    "epl.ops.adam_weight_decay_optimizer": "AdamWeightDecayOptimizer",
    "epl.profiler.flops": "FlopsProfilerHook",
    "epl.profiler.memory_profiler_hook": "MemoryProfilerHook",
    "epl.profiler.profiler": "profile_flops",
    "epl.runtime.saver": "ShardingLoader",
    "epl.strategies.parallel_strategy": "ParallelStrategy",
    "epl.strategies.replicate": "Replicate",
    "epl.strategies.split": "Split",
    "epl.utils.launcher": "main",
}
COLLECTIONS = ["global_concat", "global_mean", "global_sum", "local_concat", "local_mean", "local_sum"]


def _find(path: str) -> Any:
    """The module or the member of one with that path."""
    try:
        return importlib.import_module(path)
    except ImportError:
        parent, _, name = path.rpartition(".")
        return getattr(_find(parent), name)


def _parameters(function: Any) -> List[Tuple[str, Any]]:
    return [(name, parameter.default) for name, parameter in inspect.signature(function).parameters.items()]


@pytest.mark.parametrize("path", sorted(SIGNATURES))
def test_a_signature_is_kept_and_what_is_added_may_be_left_out(path: str) -> None:
    expected, parameters = SIGNATURES[path], _parameters(_find(path))
    assert parameters[: len(expected)] == expected
    assert all(default is not NEEDED for _, default in parameters[len(expected) :])


@pytest.mark.parametrize("path", sorted(PATHS))
def test_the_import_paths_of_the_released_package_stay(path: str) -> None:
    assert PATHS[path] in vars(importlib.import_module(path))


def test_the_names_of_the_package() -> None:
    names = "Cluster Config Env Graph GraphKeys StepStatsCallback StepStatsHook SumMetricsHook VERSION "
    names += "add_to_collection executing_eagerly explain get_all_collections get_collection init keep_whole "
    names += "local_rows replicate run set_default_strategy split sum_metrics"
    assert sorted(epl.__all__) == sorted(names.split())
    assert all(hasattr(epl, name) for name in epl.__all__)
    assert epl.VERSION == epl.__version__ == "0.6.0"


def test_the_keys_of_collections() -> None:
    names = [name.upper() + "_OBJECTS" for name in COLLECTIONS]
    keys = [name + "_objects" for name in COLLECTIONS]
    assert [getattr(epl.GraphKeys, name) for name in names] == epl.GraphKeys.ALL_COLLECTION_KEYS == keys


def test_init_refuses_eager_execution() -> None:
    expected = "^Tensorflow eager mode is not supported by EPL now, .*disable_eager"
    with context.eager_mode(), pytest.raises(RuntimeError, match=expected):
        epl.init()


@pytest.mark.parametrize("config", [{"pipeline.num_micro_batch": 2}, "config", 3], ids=str)
def test_init_refuses_what_is_no_config(init: Any, config: Any) -> None:
    with pytest.raises(TypeError, match="expected an epl.Config, got " + type(config).__name__):
        epl.init(config)


def test_init_refuses_an_incomplete_tf_config(init: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["127.0.0.1:0"]}}')
    with pytest.raises(ClusterError, match="TF_CONFIG"):
        epl.init()


def test_init_freezes_the_configuration(init: Any) -> None:
    init()
    with pytest.raises(ConfigError, match="already used by epl.init"):
        Env.get().config.pipeline.num_micro_batch = 2


@pytest.mark.parametrize("colocate,layout", [(False, "auto"), (True, "all")])
def test_init_makes_the_cluster(init: Any, colocate: bool, layout: str) -> None:
    init(annotate=False, cluster__colocate_split_and_replicate=colocate)
    cluster = Env.get().cluster
    assert cluster.layout.name == layout and len(cluster.virtual_devices) == int(colocate)


def test_the_virtual_devices_of_a_model_are_there_once_it_has_gradients(init: Any) -> None:
    init(4, annotate=False)
    cluster = Env.get().cluster
    with epl.replicate(1):
        weight = tf.get_variable("w", [])
    assert cluster.virtual_devices == []
    with epl.replicate(1):
        loss = weight * 2.0
    tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    first, second = (device.slice_devices for device in cluster.virtual_devices)
    name = "/job:worker/replica:0/task:0/device:CPU:%d"
    assert (first, second) == (((name % 0,), (name % 2,)), ((name % 1,), (name % 3,)))


def test_what_the_environment_tells(init: Any) -> None:
    epl.Env.get().reset()
    env = epl.Env.get()
    assert env is Env.get() and not env.is_ready and env.cluster is None
    init(2, pipeline__num_micro_batch=4)
    devices = ["/job:worker/replica:0/task:0/device:CPU:%d" % index for index in range(2)]
    cluster = env.cluster
    assert (cluster.worker_num, cluster.worker_index, cluster.hosts) == (1, 0, ["127.0.0.1:0"])
    assert (cluster.gpu_num_per_worker, cluster.total_gpu_num, cluster.available_devices) == (2, 2, devices)
    assert cluster.cluster_spec.as_dict() == {"worker": ["127.0.0.1:0"]}
    assert cluster.current_worker_chief_gpu() == cluster.current_worker_cpu() == devices[0]
    assert env.is_ready and env.config.pipeline.num_micro_batch == 4
    tf.constant(1.0)
    graph = epl.Graph.get()
    assert env.default_graph is graph and graph in env.epl_graphs
    assert env.graph_map[tf.get_default_graph()] is graph
    assert env.parallel_information == {} and env.strategy_context is not None
    assert env.get_config_proto().device_count["CPU"] == 2


def test_outside_of_annotated_graphs_there_is_no_information(init: Any) -> None:
    init(annotate=False)
    assert epl.Env.get().parallel_information is None and epl.Graph.get() is None


def test_a_server_is_made_once(init: Any, monkeypatch: Any) -> None:
    with pytest.raises(RuntimeError, match="epl.init"):
        epl.Env().get_or_create_server()
    init()
    env = epl.Env.get()
    monkeypatch.setattr(env, "_server", None)
    server = env.get_or_create_server()
    assert env.get_or_create_server() is server is env.server
    with pytest.raises(RuntimeError, match="Server is already set."):
        env.server = server
