"""What the team's script does in a shop, before and after the move: nothing in here changes."""

from typing import Any


def place_order(page: Any, job: dict[str, Any]) -> None:
    """Open the shop and press its button. The page answers when the order is placed."""
    page.goto(job["payload"]["shop_url"])
    page.click("#order")
    page.wait_for_selector("#placed", timeout=60_000)
