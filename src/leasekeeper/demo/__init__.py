"""The demonstration: a small shop on this machine, a fleet that works in it, and everything that can go wrong with it.

`tasks.py` is written to be copied. The command line displays it.
"""
