"""What `epl-launch --check` runs in processes of its own; the timing of real pairs is in tests/launcher."""

from epl.cluster.cluster import Cluster
from epl.ops.job import JobError
from epl.runtime import self_check


def test_facts_say_what_is_built_in():
    facts = self_check.facts()
    assert facts["native"] is None and {"local", "shm"} <= set(facts["transports"])
    assert isinstance(facts["cuda"], bool) and facts["gpus"] >= 0


def test_an_error_of_a_pair_is_a_result(monkeypatch):
    def refuse(*_):
        raise JobError("no transport", code=9)

    monkeypatch.setattr(self_check, "Communicator", refuse)
    result = self_check._try_pair(Cluster(["a:1", "b:1"]), (0, 1))
    assert result["error"] == "no transport"


def test_a_wrong_sum_is_an_error(monkeypatch):
    monkeypatch.setattr(self_check, "Communicator", lambda *_: type("Fake", (), {"transport": "shm"}))
    monkeypatch.setattr(self_check, "_time", lambda *_: (1.0, 0.5))
    result = self_check._try_pair(Cluster(["a:1", "b:1"]), (0, 1))
    assert result == {"transport": "shm", "ms": 1.0, "error": "the sum is wrong by up to 0.5"}
