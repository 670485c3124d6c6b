"""Profiles as data: which files of a directory belong to a snapshot; pack, unpack, import, export and swap them.

Knows Chromium's layout, files and bytes. Knows no lease, job or store: callers decide who may touch a directory.
"""
