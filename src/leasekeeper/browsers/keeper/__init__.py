"""The keeper: the process that owns a browser on behalf of a lease. Standard library only, quick to start.

Nothing here may import the rest of Leasekeeper, nor `typing`, `asyncio` or `logging`: every import delays a launch.
"""
