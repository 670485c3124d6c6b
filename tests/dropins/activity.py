"""Runs the example's activity as Temporal's own test environment does: `activity.py PROFILE URL [cancel]`.

Prints what came of it. With `cancel` it says when the browser is open, and cancels at a line on standard input.
"""

import asyncio
import sys

import temporal_activities
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - its parent reads it


async def main(profile: str, url: str, *more: str) -> None:
    environment = ActivityEnvironment()
    beats: list[object] = []
    environment.on_heartbeat = lambda *details: beats.append(details)
    working = asyncio.ensure_future(environment.run(temporal_activities.sync_orders, profile, url))
    if more:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        environment.cancel()
    try:
        say("title", await working, bool(beats))
    except ApplicationError as error:
        say("error", error.type, error.non_retryable)
    except asyncio.CancelledError:
        say("cancelled")


asyncio.run(main(*sys.argv[1:]))
