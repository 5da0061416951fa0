"""Models of waiting layers whose plan is searched: what is found runs beside the best of what is always compared.

python -m tests.planner.waiting_searches search NAME FOLDER    writes found.json and always.json, strategies, and prints
                                                               the name and the simulated seconds of each
python -m tests.planner.waiting_searches measure NAME FILE     prints the seconds of the steps by a strategy
"""

import json
import os
import sys
from typing import Any, Dict, List, NamedTuple, Tuple

from tests.planner.recorded_script import recorded_graph
from tests.planner.waiting_layers import WaitingPlan, WaitingProfile, build, train, write_machine

FOUND, ALWAYS = "found", "always"
STEPS = 5
_MADE = ("cut for their devices", "blocks by")  # in the names of plans that a search makes for the model


class WaitingSearch(NamedTuple):
    """A model, and the job that its plan is searched for.

    Attributes:
      layers: the seconds that each layer waits per row; twice that backward.
      devices: of each worker.
      config: keys of `epl.Config` that the search keeps to.
      speeds: of the devices of each worker, relative to the seconds of the layers.
      rows: of the global batch.
    """

    layers: Tuple[float, ...]
    devices: int
    config: Tuple[Tuple[str, object], ...]
    speeds: Tuple[int, ...] = (1,)
    rows: int = 32

    def plan(self, name: str, more: Dict[str, object]) -> WaitingPlan:
        """The model without scopes, with more keys than those that the search keeps to."""
        # Only a pipeline has several workers here: the first one feeds it.
        config, workers = (*self.config, *more.items()), len(self.speeds)
        return WaitingPlan(
            name, (self.layers,), ("",), config, workers, self.devices, self.rows, self.speeds, is_fed_by_first=True
        )


def _heavy_first(seconds: float, first: int = 6, count: int = 7) -> Tuple[float, ...]:
    return (first * seconds, *(seconds,) * (count - 1))


def _stages(count: int, **config: object) -> Tuple[Tuple[str, object], ...]:
    keys = [(key.replace("__", "."), value) for key, value in config.items()]
    return (("auto.auto_parallel", True), ("pipeline.num_stages", count), *keys)


SEARCHES = {
    "a heavy first layer, 2 stages": WaitingSearch(_heavy_first(6e-4), 2, _stages(2)),
    "a heavy last layer, 2 stages, gradient checkpoint": WaitingSearch(
        _heavy_first(6e-4)[::-1], 2, _stages(2, gradient_checkpoint__type="auto")
    ),
    "a heavy first layer, 4 stages": WaitingSearch(_heavy_first(1e-3, 4, 13), 4, _stages(4)),
    "a heavy first layer, 2 stages on 4 devices": WaitingSearch(_heavy_first(1.2e-3), 4, _stages(2)),
    "2 processes 1:3, 2 stages": WaitingSearch((2e-3,) * 8, 1, _stages(2), (1, 3)),
    "2 processes 3:1, a heavy first layer, 2 stages": WaitingSearch(_heavy_first(2e-3, 3), 1, _stages(2), (3, 1)),
}


def search(name: str, folder: str) -> Dict[str, Tuple[str, float]]:
    """Writes the strategy that is found, and the best of those that are always compared; their names and seconds."""
    from epl.parallel.plan import strategy as strategies
    from epl.planner.search.decision import SearchResult

    model = SEARCHES[name]
    machine = os.path.join(folder, "machine.json")
    write_machine(machine, model.speeds, model.devices)
    settings = {"cluster.device_type": "cpu", "cluster.num_virtual_devices": str(model.devices)}
    keys: Dict[str, object] = {"auto.planner": "search", "auto.machine": machine, "auto.rows": model.rows}
    plan = model.plan(name, keys)
    graph = recorded_graph(settings, len(model.speeds), lambda device: WaitingProfile(), lambda: build(plan))
    result = graph.state_of(SearchResult)
    always = [one for one in result.in_order() if one.fits and _is_always_compared(one.candidate.name)]
    told = {}
    for which, one in ((FOUND, result.chosen), (ALWAYS, always[0])):
        with open(os.path.join(folder, f"{which}.json"), "w") as file:
            file.write(strategies.to_json(one.candidate.strategy))
        told[which] = (one.candidate.name, one.outcome.seconds)
    return told


def _is_always_compared(name: str) -> bool:
    return name.startswith("uniform split") or not any(words in name for words in _MADE)


def measure(name: str, path: str) -> List[float]:
    """The seconds of steps of a job that trains by a strategy."""
    from epl.launcher.run import run

    os.environ["EPL_CLUSTER_DEVICE_TYPE"] = "cpu"
    model = _at_speeds(SEARCHES[name], path)._replace(config=())
    plan = model.plan(name, {"auto.plan_file": path})
    told = run(train, plan.workers, plan.devices, args=(plan, STEPS))
    return max([one[0] for one in told if one is not None], key=sum)


def _at_speeds(model: WaitingSearch, path: str) -> WaitingSearch:
    """The model with the seconds that its layers wait by a strategy.

    Worker 0 runs the Python functions of all stages, so that a layer cannot ask for the speed of its worker.
    """
    from epl.parallel.plan import strategy as strategies

    if len(model.speeds) == 1:
        return model
    with open(path) as file:
        strategy = strategies.from_json(file.read())
    stages = {op.name: op.block for op in strategy.ops}  # one worker each
    layers = [
        seconds / model.speeds[stages[f"block0_layer{layer}_forward"]] for layer, seconds in enumerate(model.layers)
    ]
    return model._replace(layers=tuple(layers), speeds=(1,) * len(model.speeds))


if __name__ == "__main__":
    what: Any = {"search": search, "measure": measure}[sys.argv[1]]
    print(json.dumps(what(*sys.argv[2:])))
