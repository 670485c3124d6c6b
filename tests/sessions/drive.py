"""The Python twin of `node/drive.mjs`: clicks until it is cut or has clicked often enough, then comes back once."""

import json
import os
import sys

from playwright.sync_api import Error, Page, sync_playwright


def main(site: str, name: str, times: int) -> None:
    with sync_playwright() as playwright:

        def connect() -> Page:
            browser = playwright.chromium.connect_over_cdp(os.environ["LEASEKEEPER_CDP_URL"])
            return browser.contexts[0].pages[0]

        page = connect()
        page.on("dialog", lambda dialog: dialog.accept())
        assert page.evaluate("confirm('sure?')"), "somebody else answered the dialog"
        page.goto(f"{site}/?title={name}")
        print("ready", flush=True)  # noqa: T201 - its parent reads it
        try:
            for _ in range(times):
                page.click("#go")
            print(f"clicked {times}", flush=True)  # noqa: T201 - its parent reads it
            return
        except Error as error:
            print("cut:", error.message.splitlines()[0], flush=True)  # noqa: T201 - its parent reads it
        try:
            connect()
            print("again: connected", flush=True)  # noqa: T201 - its parent reads it
        except Error as error:
            print("again:", json.dumps(error.message), flush=True)  # noqa: T201 - its parent reads it


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
