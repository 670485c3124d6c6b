"""Records a run: pictures of its browser with their times, in one file with a maximum size.

Opt-in, for a profile or a task. At the maximum size every second picture is dropped, and from then on half as many are
kept: a long run is recorded more coarsely, never cut off. The file is `recording.lkr`: the mark `LKR1`, then for each
picture milliseconds since the first (4 bytes), width and height of the page (2 each), length (4), JPEG.
"""

import asyncio
import struct
from contextlib import suppress
from typing import Final

from leasekeeper.driver_port import ClientRefused, RunningBrowser
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.screencast import Frame, Screencast

NAME: Final = "recording.lkr"
MARK: Final = b"LKR1"
MAX_BYTES: Final = 8 * 1024 * 1024
LEAST_SECONDS: Final = 0.5
EVERY_NTH: Final = 6
# A run that ends before its first picture waits for one up to this long.
FIRST_SECONDS: Final = 5.0
_HEAD: Final = struct.Struct(">IHHI")


class Recording:
    """Records one browser from `start` until `stop`, or until its clients are cut."""

    def __init__(self, browser: RunningBrowser, max_bytes: int = MAX_BYTES) -> None:
        self._browser = browser
        self._max_bytes = max_bytes
        self._frames: list[tuple[float, Frame]] = []
        self._size = 0
        self._apart = LEAST_SECONDS
        self._newest: tuple[float, Frame] | None = None
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start recording in the background."""
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with suppress(ClientRefused):
            client = await self._browser.add_client()
            try:
                await Screencast(client, on_frame=self.keep, every_nth=EVERY_NTH).run()
            finally:
                await client.close()

    def keep(self, frame: Frame) -> None:
        """Add a picture taken now. If it follows the one before too soon, it is kept only if it is the last."""
        self.put(boot_time(), frame)

    def put(self, at: float, frame: Frame) -> None:
        """Add a picture taken at this time, by `boot_time`."""
        if self._frames and at - self._frames[-1][0] < self._apart:
            self._newest = (at, frame)
            return
        self._newest = None
        self._add(at, frame)

    def _add(self, at: float, frame: Frame) -> None:
        self._frames.append((at, frame))
        self._first.set()
        self._size += len(frame.jpeg) + _HEAD.size
        while self._size > self._max_bytes and len(self._frames) > 1:
            self._frames = self._frames[::2]
            self._size = sum(len(each.jpeg) + _HEAD.size for _, each in self._frames)
            self._apart *= 2

    async def stop(self) -> bytes | None:
        """Stop recording. Returns the file, or None if there was no picture."""
        if self._task is not None:
            first = asyncio.ensure_future(self._first.wait())
            await asyncio.wait({self._task, first}, timeout=FIRST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._newest is not None:
            self._add(*self._newest)
            self._newest = None
        if not self._frames:
            return None
        since = self._frames[0][0]
        parts = [MARK]
        for at, frame in self._frames:
            parts += [_HEAD.pack(round((at - since) * 1000), frame.width, frame.height, len(frame.jpeg)), frame.jpeg]
        return b"".join(parts)
