"""A step as a program: a graph without TensorFlow. Devices, pools, buffers and edges are numbers.

- A *pool* is some threads: those of the devices of a process, a stream of a GPU, or a link.
- An order that ops of a pool keep, such as that of a pipeline schedule, is told by `after`.
- An op that names a pool, such as a transfer over a link, is run by a thread of that pool; its output lies in the
  memory of its device. So transfers and collectives that share a link follow each other.
- A collective begins when all its ranks have come. It holds one thread of each pool that its ops name, from begin to
  end; without such a pool it holds no thread. A collective that uses links one after the other (reduce-scatter in the
  node, all-reduce between nodes, all-gather) is several collectives. One that uses several links at the same time has
  ranks that name them; a rank without outputs may stand for one more link.
- *Cores* are what several CPU devices compute with. Ops that devices with the same cores run at the same time divide
  them equally, so that each takes longer.
"""

from typing import List, NamedTuple, Optional, Tuple


class SimulatedOutput(NamedTuple):
    """The memory of one output of an op.

    Attributes:
      bytes: its size.
      alias: position of the input whose memory it shares; -1 for memory of its own.
      in_place: positions of the inputs, of the same size, whose memory it may take.
      role: its role in the estimate.
      persistent: it exists before and after the step (a variable, a constant, a fed value).
    """

    bytes: int
    alias: int
    in_place: Tuple[int, ...]
    role: str
    persistent: bool


class SimulatedOp(NamedTuple):
    """One op of a program.

    Attributes:
      device: its number; its outputs lie there.
      seconds: how long it runs; a collective takes as long as its longest rank.
      cheap: the thread that makes it ready runs it, too.
      inputs: (op, output) of each; op -1 for one that is there from the beginning.
      after: other ops that it waits for.
      outputs: its outputs, in order.
      temporary: bytes that it allocates while it runs.
      stores: (position of an input, bytes): bytes that it adds to the memory of that input, such as a write to a stack
        or a TensorArray; (-1, 0) for most ops.
      pool: whose thread runs it; -1 for that of its device.
    """

    device: int
    seconds: float
    cheap: bool
    inputs: Tuple[Tuple[int, int], ...]
    after: Tuple[int, ...]
    outputs: Tuple[SimulatedOutput, ...]
    temporary: int
    stores: Tuple[int, int]
    pool: int = -1


class SharedCores(NamedTuple):
    """Cores with which a device computes, and others, too.

    Attributes:
      number: of the cores; equal for devices that share them.
      load: an op of the device takes so much longer if no other device computes: the ops that run at the same time
        for each op of the program, as a device of it may stand for several.
    """

    number: int
    load: float


class SimulatedProgram(NamedTuple):
    """A step.

    Attributes:
      ops: a graph without cycles; roots start in this order.
      pools: per device, the number of the pool that runs its ops. The CPU devices of a process share theirs.
      threads: the number of threads of each pool; pools that belong to no device, such as links, come after the others.
      fetched: ops whose outputs stay until the end.
      collectives: the ops of each collective, one for each rank of this process.
      cores: per device, the cores that it shares; None: it has its own. () if all have.
    """

    ops: List[SimulatedOp]
    pools: Tuple[int, ...]
    threads: Tuple[int, ...]
    fetched: Tuple[int, ...]
    collectives: Tuple[Tuple[int, ...], ...]
    cores: Tuple[Optional[SharedCores], ...] = ()
