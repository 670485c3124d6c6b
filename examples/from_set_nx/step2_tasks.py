"""Steps 2 and 3: a bridge takes the jobs from the list, a worker runs them, the script is a task.

leasekeeper bridge redis env:REDIS_URL --list shop:jobs --name shop
leasekeeper up step2_tasks:app
"""

from typing import Any

from shop_script import place_order

from leasekeeper import App, SyncRun

app = App()


@app.task("place_order")
def run_place_order(run: SyncRun) -> None:
    job: dict[str, Any] = {"payload": dict(run.payload)}
    with run.mutating("place_order"):
        place_order(run.page, job)
    run.safe("order_placed")
