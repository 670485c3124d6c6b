"""A server that goes away and comes back: pages notice both, and show what happened meanwhile."""

from contextlib import AsyncExitStack

from playwright.sync_api import Browser

from leasekeeper.core.decisions import Action
from leasekeeper.service.app import make_app
from leasekeeper.service.serving import Address, serving
from tests.dashboard.stage import Stage, looking


def test_a_page_is_live_again_after_the_server_restarted(browser: Browser, stage: Stage) -> None:
    async def start(port: int) -> tuple[AsyncExitStack, str]:
        stack = AsyncExitStack()
        url = await stack.enter_async_context(serving(make_app(stage.served.service), Address(port=port)))
        return stack, url

    running, url = stage.do(start(0))
    with looking(browser, url, stage.served.token) as eyes:
        page = eyes.go("/ui/")
        page.get_by_text("live", exact=True).wait_for()
        stage.do(running.aclose())
        page.get_by_text("reconnecting").wait_for()
        stage.do(stage.world.decide_profile(Action.DISABLE, "books_us_1"))
        running, _ = stage.do(start(int(url.rpartition(":")[2])))
        page.locator("#p-books_us_1 .s-disabled").wait_for()
        page.get_by_text("live", exact=True).wait_for()
        stage.do(stage.world.decide_profile(Action.ENABLE, "books_us_1"))
        page.locator("#p-books_us_1 .s-available").wait_for()
        eyes.troubles[:] = [each for each in eyes.troubles if "net::ERR_" not in each]
    stage.do(running.aclose())
