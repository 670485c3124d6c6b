"""Playwright's sync API, connected to a session's address: for programs without an event loop."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


class SyncConnection:
    """One connection. Only the thread that made it may use it and its objects."""

    def __init__(self, url: str) -> None:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        try:
            self.browser: Browser = self._playwright.chromium.connect_over_cdp(url)
            self.context: BrowserContext = self.browser.contexts[0]
            self.page: Page = self.context.pages[0] if self.context.pages else self.context.new_page()
        except BaseException:
            self._playwright.stop()
            raise

    def close(self) -> None:
        """Disconnect. The session closes the browser."""
        self._playwright.stop()
