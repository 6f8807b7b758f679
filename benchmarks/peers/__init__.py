"""The same workload on cqueue and on its peers: `make bench-peers`, or `python -m benchmarks.peers`."""
