"""Browsers behind leases: the drivers that open them, the keeper (a process of its own), the worker's link to it.

A driver knows how to start and stop one kind of browser. No module here knows the store, jobs or people's decisions.
"""
