"""Models, strategies and machines by hand, whose steps can be computed on paper."""

import json
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from epl.parallel.plan.strategy import Block, ForwardOp, PlannedChoice, Setting, Strategy, fingerprint
from epl.planner.machine.machine import Device, Interconnect, LinkLevel, Machine, MachineNode, Speed
from epl.planner.simulator.model_costs import Basis, ModelCosts, ModelOp, OpCosts

INSTANT = 1e30  # bytes per second


class Layer(NamedTuple):
    """A layer: a variable, and one op that takes it and the layer before.

    Attributes:
      forward, backward: seconds of a row on the kind of device of speed 1.
      weight: bytes of its variable; 0 for none.
      output: bytes of a row of its output.
      kept: whether the backward pass reads its output.
      type: of the op.
    """

    forward: float = 1.0
    backward: float = 2.0
    weight: int = 0
    output: float = 0.0
    kept: bool = False
    type: str = "MatMul"


class HandCosts(ModelCosts):
    """The costs of a chain of layers.

    Attributes:
      layers: of the chain.
      first: by layer, the number of its first op; its last op computes it.
    """

    def __init__(
        self, layers: Sequence[Layer], speeds: Optional[Dict[str, float]] = None, slots=(), inputs: float = 0.0
    ) -> None:
        self.layers = tuple(layers)
        self.rows = None
        self.slots = dict(slots)
        self.notes = ("made by hand",)
        self._speeds = speeds or {}
        self._known: Dict[Tuple[int, Device], OpCosts] = {}
        ops = [ModelOp("x", "Placeholder", (), 0, False, True, False)]
        self._layer_of: Dict[int, Layer] = {0: Layer(0.0, 0.0, output=inputs)}
        self.first = []
        before = 0
        for number, layer in enumerate(self.layers):
            self.first.append(len(ops))
            inputs = [(before, 0)]
            if layer.weight:
                inputs.append((len(ops) + 1, 0))
                ops.append(
                    ModelOp(f"w{number}", "VariableV2", (), layer.weight, True, False, False, (layer.weight // 4,))
                )
                ops.append(ModelOp(f"w{number}/read", "Identity", ((len(ops) - 1, 0),), 0, False, False, False))
            before = len(ops)
            self._layer_of[before] = layer
            reads = frozenset([0] if number and self.layers[number - 1].kept else [])
            ops.append(ModelOp(f"layer{number}", layer.type, tuple(inputs), 0, False, True, True, read_inputs=reads))
        self.ops = tuple(ops)

    def at(self, rows: int, device: Device) -> OpCosts:
        if (rows, device) not in self._known:
            self._known[rows, device] = self._find(rows, device)
        return self._known[rows, device]

    def _find(self, rows: int, device: Device) -> OpCosts:
        speed = self._speeds.get(device.name, 1.0)
        layers = [self._layer_of.get(op, Layer(0.0, 0.0)) for op in range(len(self.ops))]
        output = tuple(layer.output * rows for layer in layers)
        return OpCosts(
            forward=tuple(layer.forward * rows / speed for layer in layers),
            backward=tuple(layer.backward * rows / speed for layer in layers),
            forward_flops=tuple(layer.forward * rows for layer in layers),
            backward_flops=tuple(layer.backward * rows for layer in layers),
            output_bytes=output,
            kept_bytes=tuple(size if layer.kept else 0.0 for size, layer in zip(output, layers)),
            basis=(Basis.MEASURED,) * len(layers),
        )

    def tensor_bytes(self, rows: int, op: int, output: int) -> float:
        if op in self._layer_of:
            return self._layer_of[op].output * rows
        source = self.ops[op].inputs[0][0] if self.ops[op].inputs else op
        return float(self.ops[source].variable_bytes)


def device(name="a", bandwidth=INSTANT, memory=None, overhead=0.0, threads=1) -> Device:
    """A kind of device; memory bandwidth without end, so that updates take no time."""
    return Device(name, (), Speed(bandwidth), memory, overhead, threads, ())


def machine(
    nodes: Sequence[Sequence[str]] = (("a", "a"),),
    devices: Sequence[Device] = (),
    latency: float = 0.0,
    bandwidth: float = 1.0,
    shared_by: int = 1,
    network: Tuple[float, float] = (0.0, 1.0),
) -> Machine:
    """Nodes of devices on one link each; `network`: its latency and bandwidth, one link for a node."""
    kinds = {one.name: one for one in devices or [device(name) for names in nodes for name in names]}
    return Machine(
        "by hand",
        tuple(kinds.values()),
        (
            Interconnect("bus", latency, Speed(bandwidth), shared_by, ()),
            Interconnect("net", network[0], Speed(network[1]), 0, ()),
        ),
        tuple(
            MachineNode(
                tuple(names),
                (LinkLevel("bus", (tuple(range(len(names))),)),) if len(names) > 1 else (),
                "net" if len(nodes) > 1 else "",
            )
            for names in nodes
        ),
    )


def strategy(
    costs: ModelCosts,
    devices: int = 1,
    workers: int = 1,
    blocks: Sequence[Block] = (),
    block_of: Sequence[int] = (),
    choices: Optional[Dict[int, str]] = None,
    **settings,
) -> Strategy:
    """A strategy.

    Args:
      costs: of the model.
      devices, workers: of the job.
      blocks: epl.replicate(1) alone, if there are none.
      block_of: by op.
      choices: op -> placements.
      settings: key with "__" for the dot -> value.
    """
    ops = []
    for number, op in enumerate(costs.ops):
        inputs = tuple(str(producer) for producer, _ in op.inputs)
        ops.append(ForwardOp(op.name, op.type, inputs, ("float32[?]",), block_of[number] if block_of else 0))
    return Strategy(
        model=fingerprint(ops),
        workers=workers,
        devices=devices,
        device_type="CPU",
        blocks_origin="scopes",
        blocks=tuple(blocks) or (replicate(),),
        choices=tuple(PlannedChoice(op, text) for op, text in sorted((choices or {}).items())),
        settings=tuple(
            Setting(key.replace("__", "."), json.dumps(value), "code") for key, value in sorted(settings.items())
        ),
        ops=tuple(ops),
    )


def replicate(devices: int = 1) -> Block:
    """A block of epl.replicate."""
    return Block("replicate", devices, 0, (), ())


def split(devices: int, ratios: Sequence[int] = ()) -> Block:
    """A block of epl.split."""
    return Block("split", devices, 0, tuple(ratios), ())


def stages(costs: HandCosts, *begins: int, devices: int = 1) -> Dict[str, Sequence[object]]:
    """Blocks that begin with the layers `begins`, after a first one from layer 0 on; arguments of `strategy`."""
    starts = [costs.first[layer] for layer in begins]
    block_of = [sum(op >= start for start in starts) for op in range(len(costs.ops))]
    return {"blocks": [replicate(devices)] * (len(begins) + 1), "block_of": block_of}
