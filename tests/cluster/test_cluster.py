"""The cluster: TF_CONFIG, local devices, virtual devices, session configuration."""

import json
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

from epl.cluster.cluster import Cluster
from epl.config import keys as config_keys
from epl.config.config import Config
from epl.env import Env
from epl.utils import gpu_info
from epl.utils.errors import ClusterError, ConfigError, LayoutError

HOSTS = ["10.0.0.1:2222", "10.0.0.2:2222"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for variable in list(config_keys.KEY_BY_ENV) + ["TF_CONFIG", "CUDA_VISIBLE_DEVICES"]:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def four_gpus(monkeypatch):
    """A machine with four GPUs and a TensorFlow that can use them, as far as counting goes."""
    monkeypatch.setattr(gpu_info, "driver_gpu_count", lambda: 4)
    monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: True)


def cluster(layout="all", devices=1, hosts=None, worker_index=0, **config):
    config.setdefault("device_type", "cpu")
    return Cluster(
        worker_hosts=hosts,
        worker_index=worker_index,
        layout=layout,
        config=Config({"cluster": dict(config, num_virtual_devices=devices)}),
    )


def device(worker, index, kind="CPU"):
    return f"/job:worker/replica:0/task:{worker}/device:{kind}:{index}"


def set_tf_config(monkeypatch, task_type, task_index, **jobs):
    text = json.dumps({"cluster": jobs, "task": {"type": task_type, "index": task_index}})
    monkeypatch.setenv("TF_CONFIG", text)


class TestTfConfig:
    @pytest.mark.parametrize("text", [None, "", "{}", '{"environment": "cloud"}'])
    def test_absent_is_one_local_worker(self, monkeypatch, text):
        if text is not None:
            monkeypatch.setenv("TF_CONFIG", text)
        assert (cluster().hosts, cluster().worker_num, cluster().worker_index) == (["127.0.0.1:0"], 1, 0)

    def test_workers(self, monkeypatch):
        set_tf_config(monkeypatch, "worker", 1, worker=HOSTS)
        job = cluster()
        assert (job.hosts, job.worker_num, job.worker_index) == (HOSTS, 2, 1)
        assert job.cluster_spec.as_dict() == {"worker": HOSTS}

    @pytest.mark.parametrize("task,index,expected", [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2)])
    def test_chief_is_the_first_worker(self, monkeypatch, task, index, expected):
        set_tf_config(monkeypatch, task, index, worker=["b:1", "c:1"], chief=["a:1"])
        job = cluster()
        assert (job.hosts, job.worker_index) == (["a:1", "b:1", "c:1"], expected)

    def test_the_index_may_be_a_string(self, monkeypatch):
        set_tf_config(monkeypatch, "worker", "1", worker=HOSTS)
        assert cluster().worker_index == 1

    def test_parameter_servers_are_said_once_by_one_worker_and_not_counted(self, monkeypatch, recwarn):
        monkeypatch.setattr(Env.get(), "_said", set())
        for index in (1, 0, 0):
            set_tf_config(monkeypatch, "worker", index, worker=HOSTS, ps=["c:1", "d:1"])
            assert cluster().hosts == HOSTS
        (warning,) = [one for one in recwarn if issubclass(one.category, UserWarning)]
        assert "names 2 parameter server(s)" in str(warning.message) and "the 2 worker(s)" in str(warning.message)

    def test_a_parameter_server_itself_is_refused_with_the_remedy(self, monkeypatch):
        set_tf_config(monkeypatch, "ps", 0, worker=HOSTS, ps=["c:1"])
        with pytest.raises(ClusterError, match="this process a parameter server.*Start no process for ps"):
            cluster()

    def test_evaluator_hosts_are_no_workers(self, monkeypatch):
        set_tf_config(monkeypatch, "worker", 0, worker=HOSTS, evaluator=["e:1"])
        assert cluster().hosts == HOSTS

    def test_the_evaluator_itself_is_refused_with_the_remedy(self, monkeypatch):
        set_tf_config(monkeypatch, "evaluator", 0, worker=HOSTS)
        with pytest.raises(ClusterError, match="this process the evaluator.*without TF_CONFIG"):
            cluster()

    @pytest.mark.parametrize(
        "text,problem",
        [
            ("{", "is not JSON"),
            ("[]", "holds a list where an object is expected"),
            ('{"task": {"type": "worker", "index": 0}}', 'has no object "cluster"'),
            ('{"cluster": {"worker": ["a:1"]}}', 'has no object "task"'),
            ('{"cluster": {"worker": ["a:1"]}, "task": {"index": 0}}', 'no string "type"'),
            ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}', 'no integer "index"'),
            ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": true}}', 'no integer "index"'),
            ('{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}', 'no list of "host:port"'),
            ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "\u00b2"}}', 'no integer "index"'),
            ('{"cluster": {"worker": [null]}, "task": {"type": "worker", "index": 0}}', 'no list of "host:port"'),
            pytest.param("[" * 100000, "nested too deeply", id="deep"),
            ('{"cluster": {}, "task": {"type": "worker", "index": 0}}', "no worker has a host"),
            ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "worker", "index": 0}}', "no worker has a host"),
            ('{"cluster": {"worker": ["a:1"], "gpu": ["b:1"]}, "task": {"type": "worker", "index": 0}}', 'a job "gpu"'),
            ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "boss", "index": 0}}', 'task type "boss"'),
        ],
    )
    def test_what_is_missing_is_named_with_an_example(self, monkeypatch, text, problem):
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(ValueError, match="Get hosts information failed for incomplete TF_CONFIG") as error:
            cluster()
        assert problem in str(error.value)
        assert '"task": {"type": "worker", "index": 0}' in str(error.value)

    @pytest.mark.parametrize("index", [2, -1])
    def test_an_index_out_of_range_is_refused(self, monkeypatch, index):
        set_tf_config(monkeypatch, "worker", index, worker=HOSTS)
        with pytest.raises(ClusterError, match=f'task {index} of the job "worker", which has 2 host'):
            cluster()

    @pytest.mark.parametrize(
        "hosts",
        [["a:1", "a:1"], ["a", "b:1"], ["a:x"], [":1"], ["a:70000"], ["a:\u00b2"], ["a\0:1"], ["\ud800:1"]],
    )
    def test_bad_hosts_are_refused(self, monkeypatch, hosts):
        set_tf_config(monkeypatch, "worker", 0, worker=hosts)
        with pytest.raises(ClusterError, match="same host and port: a:1|not of the form host:port"):
            cluster()


class TestArguments:
    def test_hosts_win_over_tf_config(self, monkeypatch):
        set_tf_config(monkeypatch, "worker", 0, worker=["x:1"])
        assert cluster(hosts=HOSTS, worker_index=1).hosts == HOSTS

    def test_hosts_may_be_one_string(self):
        assert cluster(hosts="a:1, b:1").hosts == ["a:1", "b:1"]

    def test_ps_hosts_become_the_last_workers(self):
        job = Cluster(["a:1"], ["b:1"], job_name="ps", worker_index=0, config=Config({"cluster.device_type": "cpu"}))
        assert (job.hosts, job.worker_index) == (["a:1", "b:1"], 1)

    def test_ps_hosts_alone_are_refused(self):
        with pytest.raises(ClusterError, match="without worker_hosts"):
            Cluster(ps_hosts=["a:1"], config=Config())

    @pytest.mark.parametrize("hosts", [5, [5], [None], [b"a:1"], {"a:1": None, 3: 4}])
    def test_hosts_that_are_no_strings_are_refused(self, hosts):
        with pytest.raises(ClusterError, match="worker_hosts=.*expected a list of .host:port"):
            Cluster(hosts, config=Config())
        with pytest.raises(ClusterError, match="ps_hosts=.*expected a list of .host:port"):
            Cluster(["a:1"], hosts, config=Config())

    @pytest.mark.parametrize("job_name, worker_index", [("worker", 3), ("worker", None), ("ps", 1)])
    def test_an_index_without_hosts_is_refused(self, job_name, worker_index):
        with pytest.raises(
            ClusterError, match="without worker_hosts, and by TF_CONFIG or the scheduler this process is worker 0 of 1"
        ):
            Cluster(job_name=job_name, worker_index=worker_index, config=Config())

    def test_an_index_without_hosts_that_tf_config_says_too_is_taken(self, monkeypatch):
        set_tf_config(monkeypatch, "worker", 1, worker=HOSTS)
        assert cluster(worker_index=1).worker_index == 1

    def test_unknown_job_name_is_refused(self):
        with pytest.raises(ClusterError, match="job_name='chief'"):
            Cluster(["a:1"], job_name="chief", config=Config())


class TestCpuDevices:
    def test_without_a_gpu_there_is_one_virtual_device(self):
        job = Cluster(config=Config({"cluster.device_type": "cpu"}))
        assert (job.device_type, job.gpu_num_per_worker, job.total_gpu_num) == ("CPU", 1, 1)

    def test_the_environment_says_how_many(self, monkeypatch):
        monkeypatch.setenv("EPL_CLUSTER_NUM_VIRTUAL_DEVICES", "4")
        assert Cluster(config=Config({"cluster.device_type": "cpu"})).gpu_num_per_worker == 4

    def test_too_many_are_refused_at_once(self):
        with pytest.raises(ConfigError, match="num_virtual_devices = 100000 .* expected an integer from 0 to 1024"):
            Config({"cluster.num_virtual_devices": 100000})

    def test_names_and_ranks(self):
        job = cluster(devices=2, hosts=HOSTS, worker_index=1)
        assert job.all_devices == [device(0, 0), device(0, 1), device(1, 0), device(1, 1)]
        assert job.available_devices == [device(1, 0), device(1, 1)]
        assert job.total_gpu_num == 4
        assert job.local_ranks == [2, 3]
        assert job.current_worker_chief_gpu() == device(1, 0)
        assert job.current_worker_cpu() == device(1, 0)
        assert job.local_device(1) == "/device:CPU:1"

    def test_a_local_device_out_of_range_is_refused(self):
        with pytest.raises(ClusterError, match="2 device.*no device 2"):
            cluster(devices=2).local_device(2)

    def test_auto_is_cpu_when_tensorflow_is_built_without_cuda(self, monkeypatch):
        monkeypatch.setattr(gpu_info, "driver_gpu_count", lambda: 4)
        monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: False)
        assert cluster(device_type="auto").device_type == "CPU"

    def test_visible_gpus_without_a_gpu_warn(self):
        with pytest.warns(UserWarning, match="run_visible_devices = 0,1 has no effect"):
            cluster(run_visible_devices="0,1")


class TestGpuDevices:
    def test_auto_takes_all_visible_ones(self, four_gpus):
        job = cluster(device_type="auto")
        assert (job.device_type, job.gpu_num_per_worker) == ("GPU", 4)
        assert job.all_devices[3] == device(0, 3, "GPU")
        assert job.current_worker_cpu() == device(0, 0)

    def test_cpu_leaves_them_alone(self, four_gpus):
        assert cluster(device_type="cpu").device_type == "CPU"

    def test_cuda_visible_devices_counts(self, four_gpus, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
        assert cluster(device_type="gpu").gpu_num_per_worker == 2

    def test_run_visible_devices_picks(self, four_gpus):
        assert cluster(device_type="gpu", run_visible_devices="1,3").gpu_num_per_worker == 2

    def test_run_visible_devices_out_of_range_is_refused(self, four_gpus):
        with pytest.raises(ClusterError, match="names the GPU 4, and 4 GPU.*are visible"):
            cluster(device_type="gpu", run_visible_devices="4")

    def test_gpu_without_cuda_says_what_to_install(self, monkeypatch):
        monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda: False)
        with pytest.raises(ClusterError, match="built without CUDA: install tensorflow-gpu"):
            cluster(device_type="gpu")

    def test_gpu_with_none_visible_names_the_cause(self, four_gpus, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        with pytest.raises(ClusterError, match="CUDA_VISIBLE_DEVICES leaves none"):
            cluster(device_type="gpu")


class TestLayouts:
    def test_all_puts_every_device_into_one_virtual_device(self):
        (vd,) = cluster(devices=2, hosts=HOSTS, worker_index=1).virtual_devices
        assert vd.slice_devices == ((device(0, 0),), (device(0, 1),), (device(1, 0),), (device(1, 1),))
        assert vd.local_devices == (device(1, 0), device(1, 1))

    def test_all_serves_every_taskgraph(self):
        job = cluster(devices=2)
        assert job.generate_virtual_devices([1, 1]) == job.virtual_devices * 2

    @pytest.mark.parametrize("layout", [None, "auto"])
    def test_auto_waits_for_the_taskgraphs(self, layout):
        job = cluster(layout, devices=4)
        assert job.virtual_devices == []
        first, second = job.generate_virtual_devices([1, 1])
        assert first.slice_devices == ((device(0, 0),), (device(0, 2),))
        assert second.slice_devices == ((device(0, 1),), (device(0, 3),))
        assert job.virtual_devices == [first, second]

    def test_auto_answers_for_each_model(self):
        job = cluster("auto", devices=4)
        job.generate_virtual_devices([1, 1])
        (vd,) = job.generate_virtual_devices([1])
        assert vd.num_replicas == 4

    def test_auto_follows_the_order_of_the_configuration(self):
        job = cluster("auto", devices=2, hosts=HOSTS, device_place_prefer_intra_node=False)
        first, _ = job.generate_virtual_devices([1, 1])
        assert first.all_devices == (device(0, 0), device(0, 1))

    def test_auto_refuses_a_remainder(self):
        with pytest.raises(RuntimeError, match="Total devices 3 is not divisible by num_device_per_replica 2"):
            cluster("auto", devices=3).generate_virtual_devices([2])

    @pytest.mark.parametrize("layout", ["auto", "all"])
    @pytest.mark.parametrize("numbers", [None, 2, "11", [None], [1.5]])
    def test_numbers_of_devices_that_are_none_are_refused(self, layout, numbers):
        with pytest.raises(LayoutError, match="expected the number of devices of each TaskGraph"):
            cluster(layout, devices=2).generate_virtual_devices(numbers)

    def test_specific(self):
        job = cluster({"specific": [[[device(0, 1)]], [[device(0, 0)]]]}, devices=2)
        assert [vd.all_devices for vd in job.virtual_devices] == [(device(0, 1),), (device(0, 0),)]

    def test_specific_may_say_gpu_for_its_stand_in_and_leave_out_the_only_worker(self):
        (vd,) = cluster({"specific": [[["/device:GPU:1"]]]}, devices=2).virtual_devices
        assert vd.all_devices == (device(0, 1),)

    @pytest.mark.parametrize(
        "name", ["/device:CPU:0", device(2, 0), device(0, 1), "/job:ps/task:0/device:CPU:0", "x", 3]
    )
    def test_specific_refuses_what_is_no_device_of_the_job(self, name):
        with pytest.raises(LayoutError, match="no device of this job|not the name of a device"):
            cluster({"specific": [[[name]]]}, hosts=HOSTS)

    @pytest.mark.parametrize("names", [[], "abc", [device(0, 0)], [[device(0, 0)]], None])
    def test_specific_needs_three_levels(self, names):
        with pytest.raises(LayoutError, match="three levels"):
            cluster({"specific": names})

    def test_specific_needs_a_virtual_device_for_each_taskgraph(self):
        job = cluster({"specific": [[[device(0, 1)]], [[device(0, 0)]]]}, devices=2)
        assert job.generate_virtual_devices([1, 1]) == job.virtual_devices
        with pytest.raises(LayoutError, match=r"2 virtual devices, and the model has 3 TaskGraph"):
            job.generate_virtual_devices([1, 1, 1])

    def test_aware_row_reorders_hosts_cluster_spec_and_index_alike(self):
        hosts = ["a:1", "b:1", "a:2", "b:2"]
        for index, host in enumerate(hosts):
            job = cluster({"aware_row": 2}, hosts=hosts, worker_index=index)
            assert job.hosts == ["a:1", "a:2", "b:1", "b:2"]
            assert job.cluster_spec.as_dict() == {"worker": job.hosts}
            assert job.hosts[job.worker_index] == host
        assert [vd.all_devices for vd in job.virtual_devices] == [
            (device(0, 0), device(1, 0)),
            (device(2, 0), device(3, 0)),
        ]

    def test_unknown_layout_is_refused(self):
        with pytest.raises(RuntimeError, match="Layout is not supported"):
            cluster("row")


class TestConfigProto:
    def test_a_session_has_the_virtual_devices(self):
        job = cluster(devices=3)
        with tf.Graph().as_default(), tf.device(job.local_device(2)):
            answer = tf.constant(1) + 1
            with tf.Session(config=job.config_proto()) as session:
                assert session.run(answer) == 2
                names = [entry.name for entry in session.list_devices() if entry.device_type == "CPU"]
        assert len(names) == 3

    def test_the_users_settings_are_kept_and_their_proto_is_not_modified(self):
        base = tf.ConfigProto(log_device_placement=True, device_count={"CPU": 8}, intra_op_parallelism_threads=3)
        before = base.SerializeToString(deterministic=True)
        proto = cluster(devices=2).config_proto(base)
        assert base.SerializeToString(deterministic=True) == before
        assert proto.log_device_placement and proto.intra_op_parallelism_threads == 3
        assert proto.device_count["CPU"] == 8
        assert proto.allow_soft_placement

    def test_on_cpus_a_graph_is_optimized_once_unless_the_user_says_otherwise(self):
        options = cluster().config_proto().graph_options.rewrite_options
        assert (options.meta_optimizer_iterations, options.memory_optimization) == (options.ONE, options.NO_MEM_OPT)
        assert options.shape_optimization == options.OFF
        base = tf.ConfigProto()
        base.graph_options.rewrite_options.meta_optimizer_iterations = options.TWO
        base.graph_options.rewrite_options.memory_optimization = options.HEURISTICS
        options = cluster().config_proto(base).graph_options.rewrite_options
        assert (options.meta_optimizer_iterations, options.memory_optimization) == (options.TWO, options.HEURISTICS)

    def test_more_devices_than_the_user_asked_for(self):
        assert cluster(devices=4).config_proto(tf.ConfigProto(device_count={"CPU": 1})).device_count["CPU"] == 4

    def test_cpu_devices_leave_the_gpus_alone_unless_the_user_wants_some(self):
        assert cluster().config_proto().device_count["GPU"] == 0
        assert cluster().config_proto(tf.ConfigProto(device_count={"GPU": 1})).device_count["GPU"] == 1

    def test_another_type_is_a_type_error(self):
        with pytest.raises(TypeError, match="expected a tf.ConfigProto.*got dict"):
            cluster().config_proto({})

    def test_gpus_are_shown_as_the_configuration_says_and_grow(self, four_gpus):
        proto = cluster(device_type="gpu", run_visible_devices="1,3").config_proto()
        assert proto.gpu_options.visible_device_list == "1,3"
        assert proto.gpu_options.allow_growth
        assert "CPU" not in proto.device_count and "GPU" not in proto.device_count

    def test_growth_can_be_off_and_gives_way_to_a_reserved_fraction(self, four_gpus):
        job = cluster(device_type="gpu")
        assert not job.config_proto(allow_growth=False).gpu_options.allow_growth
        base = tf.ConfigProto()
        base.gpu_options.per_process_gpu_memory_fraction = 0.5
        assert not job.config_proto(base).gpu_options.allow_growth

    @pytest.mark.parametrize("visible,key", [("0", ""), ("0,1", "1,3")])
    def test_other_gpus_than_those_of_the_cluster_are_refused(self, four_gpus, visible, key):
        base = tf.ConfigProto()
        base.gpu_options.visible_device_list = visible
        with pytest.raises(ClusterError, match="visible_device_list"):
            cluster(device_type="gpu", run_visible_devices=key).config_proto(base)

    def test_fewer_gpus_by_device_count_are_refused(self, four_gpus):
        with pytest.raises(ClusterError, match="device_count GPU=0"):
            cluster(device_type="gpu").config_proto(tf.ConfigProto(device_count={"GPU": 0}))


def test_it_prints_hosts_and_devices():
    printed = repr(cluster(devices=2, hosts=HOSTS, worker_index=1))
    assert "2 worker(s) x 2 CPU device(s), this is worker 1, layout all" in printed
    assert HOSTS[1] in printed and device(1, 1) in printed


def test_as_a_context_manager_it_becomes_the_cluster_of_the_environment():
    from epl.env import Env

    env = Env.get()
    before = env.cluster
    try:
        with cluster() as job:
            assert isinstance(job, Cluster)
            assert env.cluster is job
        assert env.cluster is job
    finally:
        env.cluster = before


def test_without_a_configuration_that_of_the_environment_counts(monkeypatch):
    from epl.env import Env

    monkeypatch.setattr(Env.get(), "config", Config({"cluster.device_type": "cpu", "cluster.num_virtual_devices": 3}))
    assert Cluster().gpu_num_per_worker == 3


def test_counting_devices_makes_no_session_and_no_eager_context():
    program = (
        "import tensorflow.compat.v1 as tf\n"
        "from tensorflow.python.eager import context\n"
        "from tensorflow.python.client import session\n"
        "def refuse(*args, **kwargs): raise SystemExit('a device was touched')\n"
        "session.BaseSession.__init__ = refuse\n"
        "from tensorflow.python.client import device_lib\n"
        "device_lib.list_local_devices = refuse\n"
        "context.Context._initialize_physical_devices = refuse\n"
        "from epl.cluster.cluster import Cluster\n"
        "from epl.config.config import Config\n"
        "print(Cluster(config=Config()).gpu_num_per_worker)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, stderr=subprocess.DEVNULL)
