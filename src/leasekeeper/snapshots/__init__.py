"""Profiles as data: what of a directory counts, packed and unpacked, imported, exported and swapped into place.

Knows Chromium's layout, files and bytes. Knows no lease, job or store: who may touch a directory is decided above.
"""
