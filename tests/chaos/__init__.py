"""Chaos: random scenes and faults on simulated nodes, many resets, and an oracle that sees from outside.

`python -m tests.chaos --resets 1000`. The oracle may read the nodes and what their stand-ins noted;
it never uses an observation, plan or judgement of gpufleet's.
"""
