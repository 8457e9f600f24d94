"""Other engines beside ours on the same weights: ``python -m benchmarks.peers``.

Every engine runs in an environment and a process of its own and answers one request at a time, so that engines take
turns within a round and a slow phase of the machine hits all of them.
"""
