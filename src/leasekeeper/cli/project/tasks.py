"""Your tasks. `leasekeeper up tasks:app` runs them, each in the browser profile that its job is for."""

from leasekeeper import App, Fail, Run

app = App()  # its settings are in leasekeeper.toml


@app.task("read_title")
async def read_title(run: Run) -> dict[str, str]:
    """Open a page in the profile and return its title."""
    page = run.page  # a Playwright page; Leasekeeper opens and closes the browser
    await page.goto(run.payload.get("url", "https://example.com/"))

    # End a run with a reason, and Leasekeeper decides what becomes of job and profile. After LOGIN_REQUIRED both
    # wait for a person: `leasekeeper login PROFILE` opens a window to log in, and asks what becomes of both.
    if await page.locator("input[type=password]").count():
        raise Fail("LOGIN_REQUIRED", "the page shows a login form")

    # From here another run could start over without harm.
    await run.safe("page_open")

    # Put what must not happen twice (a purchase, a message) into `async with run.mutating("buy"):`. If the worker dies
    # in there, the job is not tried again and the profile is quarantined until a person has checked it.

    return {"title": await page.title()}  # kept as the run's output
