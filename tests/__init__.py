"""The tests, one directory per part of the system.

`servers.py` starts the real servers, `conftest.py` hands them to tests as fixtures.
"""
