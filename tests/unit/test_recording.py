"""Recordings stay below their bound, whatever is recorded, and cover the whole run."""

import asyncio
import struct
from typing import Any

from leasekeeper.runtime.recording import MARK, Recording
from leasekeeper.runtime.screencast import Frame

HEAD = struct.Struct(">IHHI")


def frames_of(data: bytes | None) -> list[tuple[int, bytes]]:
    assert data is not None
    assert data.startswith(MARK)
    found, place = [], len(MARK)
    while place < len(data):
        at, _, _, size = HEAD.unpack_from(data, place)
        found.append((at, data[place + HEAD.size : place + HEAD.size + size]))
        place += HEAD.size + size
    return found


def recorded(max_bytes: int, *pictures: tuple[float, int]) -> list[tuple[int, bytes]]:
    browser: Any = None
    recording = Recording(browser, max_bytes)
    for at, size in pictures:
        recording.put(at, Frame(800, 600, b"x" * size))
    return frames_of(asyncio.run(recording.stop()))


def test_a_short_run_keeps_its_pictures_and_the_last_one() -> None:
    found = recorded(10_000, (100.0, 10), (100.1, 11), (100.6, 12), (100.7, 13))
    assert [(at, len(jpeg)) for at, jpeg in found] == [(0, 10), (600, 12), (700, 13)]


def test_a_long_run_is_recorded_more_coarsely_and_never_cut_off() -> None:
    pictures = [(float(second), 1_000) for second in range(1_000)]
    found = recorded(20_000, *pictures)
    assert sum(len(jpeg) + HEAD.size for _, jpeg in found) <= 20_000
    assert len(found) >= 10
    assert found[0][0] == 0
    assert found[-1][0] > 900_000
    times = [at for at, _ in found]
    assert times == sorted(times)


def test_a_picture_above_the_bound_is_kept_alone() -> None:
    assert [len(jpeg) for _, jpeg in recorded(100, (0.0, 500), (1.0, 600))] == [500]


def test_a_run_without_a_picture_leaves_no_file() -> None:
    browser: Any = None
    assert asyncio.run(Recording(browser).stop()) is None


async def test_a_run_that_is_over_before_its_first_picture_waits_for_it() -> None:
    browser: Any = None
    recording = Recording(browser)

    async def late() -> None:
        await asyncio.sleep(0)
        recording.put(1.0, Frame(800, 600, b"first"))
        await asyncio.Event().wait()

    recording._task = asyncio.create_task(late())
    assert frames_of(await recording.stop()) == [(0, b"first")]
