"""Shared by all stores but the HTTP client: every operation of the port, as named reads and writes.

A dialect (SQLite, PostgreSQL, Redis) adds statements, connections and locks. The order of steps is here and the rules
are in core, so that all stores do the same.
"""
