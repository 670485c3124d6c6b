"""The rules of Leasekeeper, pure: standard library only, no I/O, no clock, no randomness.

Time and chance arrive as arguments; a decision leaves as a value.
"""
