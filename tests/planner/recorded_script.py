"""Builds a model as `epl-plan` runs a script: until it would train; and simulates its step."""

from typing import Any, Callable, Mapping

# TensorFlow is not imported here: harnesses set variables of its environment first.


def recorded_graph(
    settings: Mapping[str, str], workers: int, profile: Callable[[Any], Any], build: Callable[[], Any]
) -> Any:
    """The graph of a model, planned on a job.

    Args:
      settings: values of configuration keys, as `epl-plan --set` has them.
      workers: of the job.
      profile: given a kind of device, the times of ops on it.
      build: builds the model, its training op, and all that comes before its first session.
    """
    import tensorflow.compat.v1 as tf

    from epl.ir.graph import Graph
    from epl.parallel.strategy import record
    from epl.planner import main
    from epl.planner.search import planned_model

    main._imagined_job(dict(settings), workers)
    planned_model.open_profile = lambda mode, cluster, device: profile(device)
    with record.recording() as planned:
        try:
            build()
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
        except record.Planned:
            pass
    return Graph.of(planned[0])


def simulated_seconds(graph: Any) -> float:
    """The seconds of a simulated step of a recorded graph."""
    from epl.parallel.strategy import record
    from epl.planner.report import simulated_plan

    found = simulated_plan.simulate_plan(graph, record.strategy_of(graph))
    assert found.prediction is not None, found.refusal
    return found.prediction.seconds
