"""What it costs that a profile travels, beside one that stays at home: `make bench-profiles`.

Real browsers in profiles of 2, 20 and 80 MB, half of it text and half of it random, with caches beside. The profile
store is a folder of this machine, so that what is measured is ours: packing, encryption, checks. Each
figure is compared with its neighbour in time: in turns, the same is done without a profile store.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import sys
import tarfile
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.report import ROUNDS, Report, middle_ratio
from leasekeeper import connect
from leasekeeper.core.leases import Purpose
from leasekeeper.core.profiles import ManualUse
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.encryption import new_key
from tests.conformance.world import fleet, profile

if TYPE_CHECKING:
    from leasekeeper.client import Client

OUT = Path("bench/out/profiles.json")
SIZES_MB = (2, 20, 80)
CACHES = 0.5  # of the profile's size, and left behind


def fill(directory: Path, size_mb: int) -> None:
    """Grow a used profile to that size: half text, half random, as IndexedDB of a site; and a cache beside it."""
    folder = directory / "Default/IndexedDB/https_shop.test_0.indexeddb.blob/1/00"
    cache = directory / "Default/Cache/Cache_Data"
    folder.mkdir(parents=True)
    cache.mkdir(parents=True, exist_ok=True)
    text = (b'{"sku": "A-1007", "title": "Kettle, 1.7 l", "price": 39.90, "stock": 12}\n' * 7_000)[: 512 * 1024]
    for number in range(size_mb):
        (folder / f"{number:x}").write_bytes(text + os.urandom(512 * 1024))
    for number in range(int(size_mb * CACHES)):
        (cache / f"f_{number:06x}").write_bytes(os.urandom(1024 * 1024))


def tar_gz(directory: Path) -> tuple[float, int]:
    """Seconds and bytes of what people do instead: a tar.gz of everything."""
    began, packed = time.perf_counter(), io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as compressed, tarfile.open(fileobj=compressed, mode="w|") as tar:
        tar.add(directory, arcname=".")
    return time.perf_counter() - began, len(packed.getvalue())


async def visit(client: Client, profile_id: str, *, change: bool) -> tuple[float, float]:
    """One run: seconds from the lease to the open page, and from the end of the work to the settled run."""
    began = time.perf_counter()
    browser = client.browser(profile_id)
    async with browser:
        opened = time.perf_counter() - began
        if change:
            cookie = {"name": "session", "value": os.urandom(8).hex(), "url": "https://shop.test", "expires": 2**31}
            await browser.context.add_cookies([cookie])  # type: ignore[list-item]  # Playwright takes such a dict
        began = time.perf_counter()
    return opened, time.perf_counter() - began


async def measure(size_mb: int, folder: Path, report: Report) -> None:
    key, place = new_key(), f"file://{folder}/shared"
    store = f"sqlite:///{folder}/store.db"
    async with AsyncExitStack() as stack:

        async def client(machine: str, **more: str) -> Client:
            given: dict[str, Any] = {"data_dir": f"{folder}/{machine}", "secret_key": key, "home_wait": 0.0, **more}
            return await stack.enter_async_context(connect(store, **given))

        home, a, b = await client("home"), await client("a"), await client("b")
        profiles = [profile(each, pool=each, manual_use=ManualUse.ACCEPT) for each in ("stays", "travels")]
        await home.store.apply(fleet(*profiles), actor="bench")
        for each, machine in (("stays", home), ("travels", a)):
            await visit(machine, each, change=True)
            fill(Path(machine.config.browsers.data_dir) / "profiles" / each, size_mb)
        await home.store.apply(replace(fleet(*profiles), profile_store=place), actor="bench")
        await adopt(a, "travels")
        changed, cold, warm, same = [], [], [], []
        local, plain = [], []
        for number in range(ROUNDS):
            machine, other = ((a, b), (b, a))[number % 2]
            warm_open, release = await visit(machine, "travels", change=True)
            changed.append(release)
            warm_open, unchanged = await visit(machine, "travels", change=False)
            warm.append(warm_open)
            same.append(unchanged)
            cold_open, _ = await visit(other, "travels", change=False)
            cold.append(cold_open)
            # The one that stays has no place to travel to: it is what every figure is compared with.
            await home.store.apply(fleet(*profiles), actor="bench", prune=True)
            local.append(await visit(home, "stays", change=True))
            plain.append(await visit(home, "stays", change=False))
            await home.store.apply(replace(fleet(*profiles), profile_store=place), actor="bench")
        newest = max((await a.find(Snapshot, profile_id="travels")).items, key=lambda each: each.token)
        directory = Path(a.config.browsers.data_dir) / "profiles/travels"
        seconds, size = tar_gz(directory)
        name = f"{size_mb} MB: "
        opening, closing = [each[0] for each in plain], [each[1] for each in local]
        report.row(f"{name}release, at home", median(closing) * 1e3, "ms")
        report.row(f"{name}release, changed and saved", median(changed) * 1e3, "ms")
        report.row(f"{name}release, unchanged", median(same) * 1e3, "ms")
        report.row(f"{name}checkout, at home", median(opening) * 1e3, "ms")
        report.row(f"{name}checkout, the newest is here", median(warm) * 1e3, "ms")
        report.row(f"{name}checkout, downloaded", median(cold) * 1e3, "ms")
        report.row(f"{name}packed", newest.packed_bytes / 1e6, "MB")
        report.row(f"{name}tar.gz of everything", size / 1e6, f"MB, in {seconds * 1e3:.0f} ms")
        tag = f"_{size_mb}mb"
        report.ratio(f"release_to_local{tag}", middle_ratio(changed, closing))
        report.ratio(f"unchanged_release_to_local{tag}", middle_ratio(same, [each[1] for each in plain]))
        report.ratio(f"checkout_warm_to_local{tag}", middle_ratio(warm, opening))
        report.ratio(f"checkout_cold_ms_per_mb{tag}", (median(cold) - median(opening)) * 1e3 / size_mb)
        report.ratio(f"packed_to_tar_gz{tag}", newest.packed_bytes / size)


async def adopt(client: Client, profile_id: str) -> None:
    """What was written into the directory by hand is the profile's from now on."""
    async with client.lease(profile_id, purpose=Purpose.MANUAL) as lease:
        await lease.user_data_dir()
        lease.closed(final_url="about:blank")


def main() -> None:
    report = Report()
    print("profiles that travel, beside those that stay at home")
    for size_mb in SIZES_MB if len(sys.argv) == 1 else [int(each) for each in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure(size_mb, Path(folder), report))
    report.save(OUT)


if __name__ == "__main__":
    main()
