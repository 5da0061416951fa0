"""Programs for tests of the simulator: ops by hand, random ones, and pipeline schedules."""

from epl.parallel.plan.schedule import execution_order, sources_of_stages
from epl.planner.simulator.program import SimulatedOp, SimulatedOutput, SimulatedProgram

NONE = (-1, 0)


def timed(seconds, *inputs, size=0, after=(), device=0, role="a", pool=-1, cheap=False):
    """An op of one output of `size` bytes that takes output 0 of the ops `inputs`."""
    output = SimulatedOutput(size, -1, (), role, False)
    return SimulatedOp(
        device, float(seconds), cheap, tuple((i, 0) for i in inputs), tuple(after), (output,), 0, NONE, pool
    )


def program_of(*ops, devices=1, threads=(1,), collectives=()):
    """Each device has a pool of its own; more entries of `threads` are links."""
    return SimulatedProgram(list(ops), tuple(range(devices)), tuple(threads), (), tuple(collectives))


def random_program(r):
    """Some ops in any order of the devices, with links and collectives.

    Args:
      r: a random.Random.
    """
    devices, links = r.randint(1, 4), r.randint(0, 3)
    pools = [-1] + list(range(devices, devices + links))
    ops = []
    for number in range(r.randint(1, 40)):
        inputs = r.sample(range(number), min(number, r.choice([0, 1, 1, 2])))
        after = r.sample(range(number), min(number, r.choice([0, 0, 1])))
        seconds = r.choice([0.0, 1.0, r.random()])
        size = r.randrange(20)
        ops.append(
            timed(
                seconds, *inputs, size=size, after=after, device=r.randrange(devices), pool=r.choice(pools),
                cheap=r.random() < 0.3,
            )
        )  # fmt: skip
    # Ranks that follow each other in the program, without a path between them.
    collectives, at = [], 0
    while at < len(ops):
        ranks, at = range(at, min(at + r.randint(1, 3), len(ops))), at + 3
        edges = {p for rank in ranks for p, _ in ops[rank].inputs} | {p for rank in ranks for p in ops[rank].after}
        if r.random() < 0.3 and not edges & set(ranks):
            collectives.append(tuple(ranks))
    threads = [r.randint(1, 3) for _ in range(devices + links)]
    return program_of(*ops, devices=devices, threads=threads, collectives=collectives)


def program_of_schedule(schedule, forward, backward, transfer, dependencies=None):
    """The program of a schedule, and the op of each action.

    Each device runs its actions in order, by edges; a transfer holds a thread of one more pool, which has enough.
    """
    sources, seconds = sources_of_stages(schedule.num_stages, dependencies), {"F": forward, "B": backward}
    ops, number, last = [], {}, {}
    links = schedule.num_devices
    for action in execution_order(schedule, dependencies):
        device = schedule.device_of_stage[action.stage]
        inputs = []
        for source in sources.of(action):
            inputs.append(number[source])
            if schedule.device_of_stage[source.stage] != device:
                ops.append(timed(transfer, inputs[-1], size=1, device=device, pool=links))
                inputs[-1] = len(ops) - 1
        before = (last[device],) if device in last else ()
        last[device] = number[action] = len(ops)
        ops.append(timed(seconds[action.kind][action.stage], *inputs, size=1, after=before, device=device))
    return program_of(*ops, devices=links, threads=(1,) * links + (len(ops),)), number
