"""A new feature is a folder and a line in epl/parallel/features.py: here a toy that gives the norm of a gradient."""

import numpy as np
import tensorflow.compat.v1 as tf

from epl.ir.graph import Graph, first_tensor
from epl.ir.inserted_ops import OpOrigin
from epl.parallel import features
from epl.parallel.feature import Feature
from epl.parallel.rewriting.pass_manager import Pass
from tests.parallel.in_process import Linear


class Norms:
    """What the toy keeps of a graph: the norm of the gradient that each variable gets, by the variable's name."""

    def __init__(self):
        self.tensors = {}
        self.built_when = None


class GradientNorms(Feature):
    """Whoever fetches "norms" gets the norms of all gradients, as all replicas have averaged them."""

    origin = OpOrigin("norms", "norms")

    def around_optimizer(self, graph, request, apply):
        norms = graph.state_of(Norms) or graph.keep(Norms, Norms())
        for gradient, variable in request.pairs:
            norms.tensors[variable.op.name] = tf.norm(first_tensor(gradient))
        return apply(request)

    def rewrite_run(self, graph, request):
        asked = [tensor.name == "norms:0" for tensor in request.fetches]
        norms = graph.state_of(Norms)
        if norms is None or not any(asked):
            return request
        with graph.building_own_ops():
            return request._replace(fetches=[list(norms.tensors.values())[0]])

    passes = (
        Pass(
            "note_norms",
            lambda rewrite: setattr(rewrite.graph.state_of(Norms), "built_when", sorted(rewrite.collectives)),
            "norms",
            requires=frozenset(["collectives"]),
            plain=True,
        ),
    )


def test_a_feature_is_added_without_a_change_of_core(init, monkeypatch):
    monkeypatch.setattr(features, "FEATURES", features.FEATURES + (GradientNorms(),))
    init()
    model = Linear()
    asked = tf.constant(0.0, name="norms")
    train_op = model.minimize()
    rows = {model.x: np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], model.y: np.zeros([4, 1], np.float32)}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        norm, _ = session.run([asked, train_op], rows)
    x = rows[model.x]
    error = x @ np.ones([3, 1])
    np.testing.assert_allclose(norm, np.linalg.norm(2 * x.T @ error / 4), rtol=1e-6)
    assert "EPL_PLAN" in " ".join(Graph.get().state_of(Norms).built_when)  # after gradients were aggregated
