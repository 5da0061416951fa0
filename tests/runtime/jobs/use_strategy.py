"""Two workers train by a strategy whose file only worker 0 has: python use_strategy.py <directory>.

Writes what became of each case into <directory>/told_<worker>.json; see test_strategy_in_a_job.py.
"""

import json
import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import epl
from epl.env import Env
from epl.ir.graph import Graph
from epl.parallel.plan import plan as plans
from epl.parallel.plan import strategy as strategies
from epl.parallel.strategy import record

DIRECTORY = sys.argv[1]
WORKER = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def train(**config):
    """Three losses of a small model."""
    tf.reset_default_graph()
    epl.init(epl.Config(config))
    tf.set_random_seed(1)
    epl.set_default_strategy(epl.replicate(1))
    x = tf.placeholder(tf.float32, [None, 4], "x")
    loss = tf.reduce_mean(tf.square(tf.layers.dense(x, 3)))
    epl.add_to_collection(loss, epl.GraphKeys.GLOBAL_MEAN_OBJECTS)
    with record.recording():
        step = tf.train.AdamOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        rows = np.random.RandomState(WORKER).randn(4, 4)
        return [float(session.run([loss, step], {x: rows})[0]) for _ in range(3)]


own = os.path.join(DIRECTORY, "machine_%d" % WORKER)
os.makedirs(own)
os.chdir(own)
told = {"recorded": train(**{"zero.level": "v1"})}
strategy = record.strategy_of(Graph.get())
plan = Graph.get().rewritten.plan
if WORKER == 0:
    with open("plan.json", "w") as file:
        file.write(strategies.to_json(strategy))
told["used"] = train(**{"auto.plan_file": "plan.json"})
told["level"] = [Env.get().config.zero.level, Env.get().config.provenance("zero.level")]
told["equal"] = strategies.differences(strategy, record.strategy_of(Graph.get()))
told["plan"] = plans.first_difference(plan, plans.renamed(Graph.get().rewritten.plan, plan.name))
if WORKER == 0:
    with open("machine.json", "w") as file:
        json.dump({"nodes": ["2x1*v100-32"], "network": "eth-10"}, file)
told["searched"] = train(**{"auto.planner": "search", "auto.machine": "machine.json", "auto.rows": 8})
told["decided"] = {key: Env.get().config.get(key) for key in strategies.DECIDED_KEYS}
told["origin"] = Env.get().config.provenance("zero.level")
for case, config in (("missing", {"auto.plan_file": "none.json"}),
                     ("contradicts", {"auto.plan_file": "plan.json", "zero.level": "v0"})):  # fmt: skip
    try:
        told[case] = str(train(**config))
    except epl.utils.errors.PlanError as error:
        told[case] = str(error)
with open(os.path.join(DIRECTORY, "told_%d.json" % WORKER), "w") as out:
    json.dump(told, out)
