"""Submit a job, then use one profile under a lease. See README.md; first: `leasekeeper apply fleet.yaml`."""

import asyncio

from leasekeeper import connect, why_text


async def main() -> None:
    async with connect() as client:  # $LEASEKEEPER_STORE, leasekeeper.toml, else ./leasekeeper.db
        submitted = await client.submit("sync_orders", account="store_us_018", payload={"day": "2026-01-31"})
        print(why_text(await client.why(job=submitted.job.job_id)).headline)

        async with client.lease("store_us_018") as lease:  # renews itself until the block ends
            print(f"lease {lease.lease.lease_id}, fencing token {lease.token}")
            # Here your Playwright code calls `launch_persistent_context(**await lease.launch_options())`.
            await lease.checkpoint("dashboard_open", url="https://shop.example/dashboard")
            async with lease.mutating("submit_order"):  # dying in here quarantines the profile
                lease.check()  # raises LeaseLost once the profile must not be touched any more
            lease.closed(final_url="https://shop.example/orders")  # the browser is closed; its last URL
            settled = await lease.release(output={"orders": 3})
        print(f"profile store_us_018 is {settled.profile_state}")


asyncio.run(main())
