"""The live view of a job's browser: what it costs the task, how many pictures a person gets, how long taking takes.

The worker is in this process, as in `leasekeeper up`. The viewer takes each picture at once, as a page on a fast
connection does.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from leasekeeper.app import App, HumanAnswer, Run
from leasekeeper.runtime.live_runs import LiveRun, live_run_of
from leasekeeper.runtime.person import Person
from leasekeeper.runtime.viewer import Screen, Viewer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

SEEN_SECONDS = 3.0
FIRST_FRAMES = 5
PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.005
_MOVING = """<title>moving</title><div id=box style="width: 400px; height: 400px"></div><script>
let turn = 0;
const move = () => {
  turn = (turn + 7) % 360;
  box.style.background = `hsl(${turn} 90% 50%)`;
  requestAnimationFrame(move);
};
move();
</script>"""


def add_tasks(app: App) -> None:
    """The task that is looked at and taken: a page that moves, until a person hands it back."""

    @app.task("moving", warm=False)
    async def moving(run: Run) -> None:
        await run.page.set_content(_MOVING)
        await run.request_human("take this browser, and hand it back")


class Onlooker:
    """A person's view of a browser; `seen` pictures have reached them, `at_work` once they come one after the other."""

    def __init__(self) -> None:
        self.seen = 0
        self.at_work = asyncio.Event()
        self._screen = Screen()

    async def look(self, live: LiveRun) -> None:
        """Until the browser is closed."""
        async with live.viewer() as client:
            taking = asyncio.create_task(self._take())
            try:
                await Viewer(client, self._screen, acts=False).run()
            finally:
                taking.cancel()

    async def _take(self) -> None:
        while True:
            self.seen += sum(isinstance(message, bytes) for message in await self._screen.take())
            if self.seen >= FIRST_FRAMES:
                self.at_work.set()


@asynccontextmanager
async def looking(browser: Awaitable[LiveRun]) -> AsyncIterator[Onlooker]:
    """Somebody who looks at this browser for as long as the block lasts, from when it is open."""
    person = Onlooker()

    async def look() -> None:
        await person.look(await browser)

    task = asyncio.create_task(look())
    try:
        yield person
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def open_browser(profile_id: str, *, asks: bool = False) -> LiveRun:
    """The browser of the profile's job, once it is open; `asks`: once its task asks for a person."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (live := live_run_of(profile_id)) is None or (asks and live.asks is None):  # noqa: ASYNC110 - no event
            await asyncio.sleep(_LOOK_SECONDS)
    return live


async def frames_per_second(live: LiveRun) -> float:
    """How many pictures of a moving page reach a person."""

    async def found() -> LiveRun:
        return live

    async with looking(found()) as person:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await person.at_work.wait()
        before, started = person.seen, time.perf_counter()
        await asyncio.sleep(SEEN_SECONDS)
        return (person.seen - before) / (time.perf_counter() - started)


async def take(live: LiveRun) -> float:
    """Seconds until a person has control of the browser, which they then hand back."""
    started = time.perf_counter()
    await live.take(Person(name="bench"))
    took = time.perf_counter() - started
    await live.hand_back(HumanAnswer(by="bench", note="", outcome="solved"))
    return took
