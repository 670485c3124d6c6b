"""A process that holds a lease and says what becomes of it. Run as `python -m tests.runtime.held URL LOCK_DELAY`."""

import asyncio
import sys

from leasekeeper import LeaseLost, connect
from tests.runtime.stage import TIMES


async def hold(url: str, lock_delay: float) -> None:
    async with connect(url, **{**TIMES, "lock_delay": lock_delay}) as client:
        lease = client.lease("p1", worker_id="held")
        await lease.__aenter__()
        print("held", flush=True)  # noqa: T201 - its words are what the test reads
        try:
            while True:
                lease.check()
                await asyncio.sleep(0.01)  # waits: until the lease is lost, in small steps
        except LeaseLost as lost:
            print(f"lost {lost}", flush=True)  # noqa: T201 - its words are what the test reads
        try:
            await lease.release()
        except LeaseLost as lost:
            print(f"refused {lost}", flush=True)  # noqa: T201 - its words are what the test reads


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], float(sys.argv[2])))
