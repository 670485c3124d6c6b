"""Programs for people who work on this repository; never shipped.

Run from the repository's root, e.g. `python -m tools.docs`.
"""
