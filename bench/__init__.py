"""Benchmarks of Leasekeeper against peers and against what the machine can do at all.

Nothing here is shipped. `limits` measures the machine, `peers` measures other queues,
`claims` measures Leasekeeper and prints all three beside each other.
"""
