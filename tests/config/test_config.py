"""Configuration: keys, types, precedence, provenance, errors."""

import copy
import json
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epl.config import keys as config_keys
from epl.config.config import Config, ConfigWarning
from epl.utils.errors import ConfigError, EplError, NotAvailableError, PlanError, UnknownKeyError

# The keys of EPL 0.6.0 with their defaults, and those that came since.
EPL_DEFAULTS = {
    "auto.auto_parallel": False,
    "io.drop_last_files": False,
    "io.unbalanced_io_slicing": False,
    "io.slicing": False,
    "communication.sparse_as_dense": False,
    "communication.hierarchy": "auto",
    "communication.max_splits": 5,
    "communication.num_communicators": 2,
    "communication.fp16": False,
    "communication.fp16_scale": 128,
    "communication.clip_after_allreduce": False,
    "communication.gradients_reduce_method": "mean",
    "pipeline.num_stages": -1,
    "pipeline.num_micro_batch": 1,
    "pipeline.strategy": "preferbackward",
    "gradient_checkpoint.type": "",
    "gradient_checkpoint.end_taskgraph": -1,
    "gradient_checkpoint.check_gradients": False,
    "zero.level": "",
    "offload.level": "",
    "amp.level": "",
    "amp.debug_log": False,
    "amp.loss_scale": "dynamic",
    "cluster.device_place_prefer_intra_node": True,
    "cluster.run_visible_devices": "",
    "cluster.colocate_split_and_replicate": False,
    "optimizer.num_apply_group": 1,
}
NEW_DEFAULTS = {
    "replicate.batch": "each",
    "replicate.state": "all",
    "auto.plan_file": "",
    "auto.planner": "stages",
    "auto.machine": "",
    "auto.rows": 0,
    "auto.profile": "",
    "auto.memory_fraction": 0.9,
    "auto.budget": 60,
    "auto.steps": -1,
    "auto.trials": 0,
    "auto.seed": 0,
    "auto.balance": "even",
    "auto.explain": "",
    "amp.dtype": "float16",
    "batch_norm.sync": False,
    "communication.ordered_sparse_sums": "auto",
    "cluster.device_order": "",
    "cluster.device_type": "auto",
    "cluster.num_virtual_devices": 0,
    "communication.allow_different_graphs": False,
    "communication.start_timeout": 300.0,
    "gradient_checkpoint.memory_budget": 0,
    "communication.stall_warning": 60.0,
    "communication.timeout": 1800.0,
    "debug.check_replicas": 0,
    "debug.replicas_differ": "error",
}
BOOL_KEYS = [name for name, default in EPL_DEFAULTS.items() if isinstance(default, bool)]


@pytest.fixture(autouse=True)
def no_epl_environment(monkeypatch):
    for variable in config_keys.KEY_BY_ENV:
        monkeypatch.delenv(variable, raising=False)


def test_defaults_are_those_of_epl():
    assert Config().to_dict() == dict(EPL_DEFAULTS, **NEW_DEFAULTS)


def test_default_values_are_legal_and_canonical():
    for key in config_keys.KEYS:
        assert key.type.convert(key.default) == key.default


def test_every_key_belongs_to_a_section():
    names = [key.name for section, _ in config_keys.SECTIONS for key in config_keys.keys_of(section)]
    assert sorted(names) == sorted(config_keys.KEY_BY_NAME)


def test_keys_are_attributes_of_sections():
    config = Config({"pipeline.num_micro_batch": 4})
    assert config.pipeline.num_micro_batch == 4
    assert config.communication.max_splits == 5


def test_sections_may_be_nested_dicts():
    assert Config({"pipeline": {"num_micro_batch": 4}}) == Config({"pipeline.num_micro_batch": 4})


def test_a_key_given_twice_is_refused():
    with pytest.raises(ConfigError, match="pipeline.num_micro_batch is given twice"):
        Config({"pipeline": {"num_micro_batch": 4}, "pipeline.num_micro_batch": 2})


def test_keys_of_whale():
    assert Config({"num_micro_batch": 8}).pipeline.num_micro_batch == 8
    config = Config({"num_micro_batch": 35, "num_task_graph": 8})
    assert config == Config({"pipeline.num_micro_batch": 35, "pipeline.num_stages": 8, "auto.auto_parallel": True})


def test_a_key_given_by_both_names_is_refused():
    with pytest.raises(ConfigError, match="pipeline.num_micro_batch is given twice"):
        Config({"num_micro_batch": 8, "pipeline.num_micro_batch": 8})


def test_what_asks_for_something_in_training():
    assert Config().training_features() == []
    assert Config({"zero.level": "v1", "communication.timeout": 30}).training_features() == ["zero.level"]


def test_every_way_of_communication_asks_for_something_in_training():
    """But not when the processes wait, and what is compared."""
    others = ["allow_different_graphs", "start_timeout", "stall_warning", "timeout"]
    names = [key.name for key in config_keys.keys_of("communication")]
    asked = [name for name in config_keys.TRAINING_KEYS if name.startswith("communication.")]
    assert sorted(asked + ["communication." + name for name in others]) == sorted(names)


class TestPrecedence:
    def test_environment_wins_over_default(self, monkeypatch):
        monkeypatch.setenv("EPL_PIPELINE_NUM_MICRO_BATCH", "3")
        assert Config().pipeline.num_micro_batch == 3

    def test_dict_wins_over_environment(self, monkeypatch):
        monkeypatch.setenv("EPL_PIPELINE_NUM_MICRO_BATCH", "3")
        assert Config({"pipeline.num_micro_batch": 4}).pipeline.num_micro_batch == 4

    def test_a_default_value_in_the_dict_wins_over_environment(self, monkeypatch):
        monkeypatch.setenv("EPL_COMMUNICATION_FP16", "true")
        assert Config({"communication.fp16": False}).communication.fp16 is False

    def test_environment_is_read_when_the_config_is_made(self, monkeypatch):
        config = Config()
        monkeypatch.setenv("EPL_PIPELINE_NUM_MICRO_BATCH", "3")
        assert config.pipeline.num_micro_batch == 1

    def test_every_key_has_its_environment_variable(self, monkeypatch):
        for key in config_keys.KEYS:
            monkeypatch.setenv("EPL_" + key.name.upper().replace(".", "_"), str(key.default))
        config = Config()
        assert config == Config(config.to_dict())
        assert all(config.provenance(key.name).startswith("environment EPL_") for key in config_keys.KEYS)


class TestEnvironmentText:
    @pytest.mark.parametrize("text,value", [("true", True), ("1", True), ("YES", True), ("False", False), ("0", False)])
    def test_words_for_bool(self, monkeypatch, text, value):
        monkeypatch.setenv("EPL_IO_SLICING", text)
        assert Config().io.slicing is value

    @pytest.mark.parametrize(
        "variable,text,legal",
        [
            ("EPL_IO_SLICING", "2", "one of true, 1, yes, false, 0, no"),
            ("EPL_IO_SLICING", "", "one of true"),
            ("EPL_PIPELINE_NUM_MICRO_BATCH", "four", "an integer of at least 1"),
            ("EPL_PIPELINE_NUM_MICRO_BATCH", "1.5", "an integer of at least 1"),
            ("EPL_PIPELINE_NUM_MICRO_BATCH", "0", "an integer of at least 1"),
            ("EPL_PIPELINE_STRATEGY", "gpipe", '"PreferForward", "PreferBackward", "PreferBackwardOptimizer"'),
            ("EPL_COMMUNICATION_TIMEOUT", "inf", "a number of seconds above 0"),
            ("EPL_AMP_LOSS_SCALE", "static", '"dynamic" or a number of at least 1'),
        ],
    )
    def test_an_illegal_text_names_variable_key_and_legal_values(self, monkeypatch, variable, text, legal):
        monkeypatch.setenv(variable, text)
        with pytest.raises(ConfigError) as error:
            Config()
        assert f"{variable}={text!r}" in str(error.value)
        assert config_keys.KEY_BY_ENV[variable].name in str(error.value)
        assert legal in str(error.value)

    def test_number_of_stages_can_be_unset(self, monkeypatch):
        monkeypatch.setenv("EPL_PIPELINE_NUM_STAGES", "None")
        assert Config().pipeline.num_stages == -1

    def test_loss_scale_number(self, monkeypatch):
        monkeypatch.setenv("EPL_AMP_LOSS_SCALE", "128")
        assert Config().amp.loss_scale == 128.0


class TestUnknownEnvironment:
    def test_unknown_key_of_a_section_warns_with_the_nearest(self, monkeypatch):
        monkeypatch.setenv("EPL_PIPELINE_NUM_MICROBATCHES", "4")
        with pytest.warns(ConfigWarning, match="EPL_PIPELINE_NUM_MICROBATCHES.*EPL_PIPELINE_NUM_MICRO_BATCH"):
            Config()

    def test_misspelled_section_warns(self, monkeypatch):
        monkeypatch.setenv("EPL_PIPLINE_NUM_STAGES", "4")
        with pytest.warns(ConfigWarning, match="EPL_PIPELINE_NUM_STAGES"):
            Config()

    @pytest.mark.parametrize("variable", sorted(config_keys.OTHER_ENV) + ["EPL_HOME"])
    def test_other_variables_are_left_alone(self, monkeypatch, variable):
        monkeypatch.setenv(variable, "3")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Config()


class TestIllegalValues:
    @pytest.mark.parametrize("name", BOOL_KEYS)
    def test_bool_keys_take_bools_only(self, name):
        for value in (1, "true", None):
            with pytest.raises(ConfigError, match="True or False"):
                Config({name: value})

    @pytest.mark.parametrize("name", ["pipeline.num_micro_batch", "communication.max_splits", "pipeline.num_stages"])
    @pytest.mark.parametrize("value", [True, 1.0, "1", 0, -2])
    def test_int_keys_take_integers_of_at_least_one(self, name, value):
        with pytest.raises(ConfigError, match="an integer of at least 1"):
            Config({name: value})

    @pytest.mark.parametrize("name", ["communication.timeout", "communication.start_timeout"])
    @pytest.mark.parametrize("value", [True, "3", 0, -1.0, float("nan"), float("inf"), None])
    def test_durations_are_positive_numbers(self, name, value):
        with pytest.raises(ConfigError, match="a number of seconds above 0"):
            Config({name: value})

    @pytest.mark.parametrize("value", [True, None, 0.5, "static", float("nan"), "0"])
    def test_loss_scale(self, value):
        with pytest.raises(ConfigError, match='"dynamic" or a number of at least 1'):
            Config({"amp.loss_scale": value})

    @pytest.mark.parametrize("value", ["v3", None, 1])
    def test_choices_are_named(self, value):
        with pytest.raises(ConfigError, match='zero.level = .*one of "", "v0", "v1", "v2"'):
            Config({"zero.level": value})

    @pytest.mark.parametrize("value", ["a", "0,0", "0,,1", "-1", "\u00b2", 0])
    def test_visible_devices(self, value):
        with pytest.raises(ConfigError, match="indices of devices"):
            Config({"cluster.run_visible_devices": value})

    @pytest.mark.parametrize("value", ["", "fast", "5:", "5:0", "5:-1", "5:1.5", "5,3", "1:1000001", 5, (5, 3), None])
    def test_balance(self, value):
        with pytest.raises(
            ConfigError, match='auto.balance = .*"even" or "speed", or a whole number from 1 to 1000000'
        ):
            Config({"auto.balance": value})

    def test_it_is_a_value_error(self):
        with pytest.raises(ValueError):
            Config({"pipeline.num_micro_batch": "4"})

    @pytest.mark.parametrize("param_dict", ["a string", 3, ["pipeline.num_micro_batch"]])
    def test_param_dict_must_be_a_dict(self, param_dict):
        with pytest.raises(ConfigError, match="expected a dict"):
            Config(param_dict)

    def test_keys_must_be_strings(self):
        with pytest.raises(ConfigError, match="keys are strings"):
            Config({3: 4})


class TestUnknownKeys:
    @pytest.mark.parametrize(
        "name,nearest",
        [
            ("pipeline.num_micro_batches", "pipeline.num_micro_batch"),
            ("loss_scale", "amp.loss_scale"),
            ("zero.levels", "zero.level"),
            ("comunication.max_splits", "communication.max_splits"),
            ("Pipeline.strategy", "pipeline.strategy"),
        ],
    )
    def test_the_nearest_key_is_named(self, name, nearest):
        with pytest.raises(ConfigError, match=f"no key '{name}'.*'{nearest}'"):
            Config({name: 1})

    def test_unknown_key_in_a_nested_dict(self):
        with pytest.raises(ConfigError, match="'amp.loss_scale'"):
            Config({"amp": {"loss_scales": 1}})

    def test_reading_an_unknown_attribute(self):
        with pytest.raises(AttributeError, match="pipeline.num_micro_batch"):
            _ = Config().pipeline.num_microbatch
        assert not hasattr(Config().pipeline, "foo")

    def test_setting_an_unknown_attribute(self):
        with pytest.raises(AttributeError, match="no key 'pipeline.foo'"):
            Config().pipeline.foo = 1

    def test_unknown_section(self):
        with pytest.raises(AttributeError, match="no section 'pipelines'.*pipeline"):
            _ = Config().pipelines
        with pytest.raises(AttributeError, match="no section 'pipelines'"):
            Config().pipelines = 1

    def test_a_section_cannot_be_replaced(self):
        with pytest.raises(ConfigError, match="set its keys: config.pipeline.num_stages"):
            Config().pipeline = {"num_stages": 2}


class TestCanonicalValues:
    @pytest.mark.parametrize("text", ["PreferBackwardOptimizer", "preferbackwardoptimizer", "PREFERBACKWARDOPTIMIZER"])
    def test_choices_ignore_case(self, text):
        assert Config({"pipeline.strategy": text}).pipeline.strategy == "preferbackwardoptimizer"

    def test_amp_level(self):
        assert Config({"amp.level": "O1"}).amp.level == "o1"

    def test_numpy_numbers_become_python_numbers(self):
        config = Config({"pipeline.num_micro_batch": np.int64(4), "io.slicing": np.bool_(True)})
        assert type(config.pipeline.num_micro_batch) is int
        assert config.io.slicing is True

    def test_integers_are_accepted_for_seconds(self):
        value = Config({"communication.timeout": 30}).communication.timeout
        assert value == 30.0 and type(value) is float

    @pytest.mark.parametrize("unset", [None, -1])
    def test_number_of_stages_can_be_unset(self, unset):
        assert Config({"pipeline.num_stages": unset}).pipeline.num_stages == -1

    @pytest.mark.parametrize("value,stored", [("Dynamic", "dynamic"), ("128", 128.0), (128, 128.0), (1.5, 1.5)])
    def test_loss_scale(self, value, stored):
        assert Config({"amp.loss_scale": value}).amp.loss_scale == stored

    @pytest.mark.parametrize("value,stored", [("Even", "even"), (" 05 : 3:1", "5:3:1"), ("7", "7")])
    def test_balance(self, value, stored):
        assert Config({"auto.balance": value}).auto.balance == stored

    def test_visible_devices_lose_their_spaces(self):
        assert Config({"cluster.run_visible_devices": "0, 2"}).cluster.run_visible_devices == "0,2"


class TestAttributes:
    def test_setting_one_is_validated_as_in_the_constructor(self):
        config = Config()
        config.pipeline.strategy = "PreferForward"
        assert config.pipeline.strategy == "preferforward"
        with pytest.raises(ConfigError, match="pipeline.num_micro_batch = 'zzz'"):
            config.pipeline.num_micro_batch = "zzz"
        assert config.pipeline.num_micro_batch == 1

    def test_a_frozen_config_says_what_to_do(self):
        config = Config().freeze()
        with pytest.raises(ConfigError, match="Make a new epl.Config and call epl.init with it again"):
            config.amp.level = "O1"
        assert config.frozen and config.amp.level == ""

    def test_a_copy_is_its_own_and_not_frozen(self):
        config = Config({"amp.level": "O1"}).freeze()
        other = config.copy()
        other.amp.level = ""
        assert config.amp.level == "o1"
        assert other.provenance("amp.level") == "code" and not other.frozen

    def test_completion_lists_the_keys(self):
        assert dir(Config().zero) == ["level"]


class TestProvenance:
    def test_of_default_environment_and_code(self, monkeypatch):
        monkeypatch.setenv("EPL_AMP_LEVEL", "O1")
        config = Config({"zero.level": "v1"})
        config.io.slicing = True
        assert config.provenance("amp.level") == "environment EPL_AMP_LEVEL"
        assert config.provenance("zero.level") == "code"
        assert config.provenance("io.slicing") == "code"
        assert config.provenance("offload.level") == "default"

    def test_print_shows_every_key_with_value_and_source(self, monkeypatch):
        monkeypatch.setenv("EPL_AMP_LEVEL", "O1")
        lines = [" ".join(line.split()) for line in str(Config({"zero.level": "v1"})).splitlines()]
        assert 'amp.level = "o1" (environment EPL_AMP_LEVEL)' in lines
        assert 'zero.level = "v1" (code)' in lines
        assert "pipeline.num_micro_batch = 1 (default)" in lines
        assert len(lines) == 1 + len(config_keys.KEYS)

    def test_print_of_a_section_shows_its_keys_only(self):
        lines = str(Config().zero).splitlines()
        assert len(lines) == 2 and "zero.level" in lines[1]


class TestForms:
    def test_equality_is_of_values(self, monkeypatch):
        from_code = Config({"amp.level": "O1"})
        monkeypatch.setenv("EPL_AMP_LEVEL", "O1")
        assert Config() == from_code
        assert Config({"amp.level": ""}) != from_code
        assert Config() != {"amp.level": "o1"}

    @given(st.integers(1, 1000), st.sampled_from(["", "v0", "V1"]), st.one_of(st.just("dynamic"), st.floats(1, 2**15)))
    def test_dict_and_json_round_trip(self, micro_batches, zero, scale):
        config = Config({"pipeline.num_micro_batch": micro_batches, "zero.level": zero, "amp.loss_scale": scale})
        assert Config.from_dict(config.to_dict()) == config
        assert Config.from_dict(json.loads(config.to_json())).to_json() == config.to_json()

    @pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
    def test_copy_and_pickle(self, duplicate):
        config = Config({"amp.level": "O1"})
        other = duplicate(config)
        other.zero.level = "v1"
        assert other.amp.level == "o1" and config.zero.level == ""


def test_errors_are_the_builtin_ones_that_scripts_catch():
    assert issubclass(ConfigError, EplError) and issubclass(ConfigError, ValueError)
    assert issubclass(UnknownKeyError, AttributeError)
    assert issubclass(PlanError, RuntimeError)


def test_not_available_names_the_key_and_what_to_do():
    assert str(NotAvailableError("zero.level")) == "not available yet: zero.level"
    error = NotAvailableError("zero.level", "Leave it empty.")
    assert str(error) == "not available yet: zero.level. Leave it empty." and error.key == "zero.level"
