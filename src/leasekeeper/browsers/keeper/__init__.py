"""The keeper: the process between Playwright and one browser, which ends the browser when its lease is lost.

Standard library only. Nothing here may import the rest of Leasekeeper, nor `typing`, `asyncio` or `logging`: every
import delays a launch.
"""
