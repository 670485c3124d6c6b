"""Two machines around one store and one profile store, without browsers: leases by hand, directories made by hand.

Where the newest state is, a grant says; here `newest` and `unsaved_on` do: these tests need no rule of a store.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from leasekeeper import config as settings
from leasekeeper.browsers.keeper.directory import take_directory
from leasekeeper.browsers.keeper.seal import seal_directory
from leasekeeper.core.ids import ProfileId, SnapshotId, WorkerId
from leasekeeper.core.leases import Purpose
from leasekeeper.core.profiles import Profile
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.snapshots import NewSnapshot, Snapshot
from leasekeeper.encryption import new_key
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, LeaseRequest, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.heartbeat import Heartbeat, KeptLease
from leasekeeper.runtime.saving import Snapshots
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile
from tests.unit.used_profiles import make_used

CLOSED = EndFacts(browser=Browser.CLOSED, final_url="about:blank")


@dataclass
class Machine:
    """One machine: a data directory, and what brings and saves profiles there."""

    name: str
    data: Path
    snapshots: Snapshots

    def directory(self, profile_id: str = "p1") -> Path:
        return self.data / "profiles" / profile_id

    def beside(self) -> list[str]:
        """What is there besides directories of profiles."""
        return sorted(path.name for path in (self.data / "profiles").iterdir() if path.name.startswith("."))


@dataclass
class TwoMachines:
    """Grants leases of one profile, one after the other, and remembers its newest snapshot."""

    url: str
    store: Store
    heartbeat: Heartbeat
    folder: Path
    place: str
    more: dict[str, str | float]
    newest: Snapshot | None = None
    unsaved_on: str | None = None
    _kept: list[KeptLease] = field(default_factory=list)

    def stage(self, machine: str) -> dict[str, Any]:
        """What another process needs to go on with these two, on that machine."""
        return {
            "url": self.url,
            "folder": self.folder,
            "place": self.place,
            "more": self.more,
            "newest": self.newest,
            "machine": machine,
        }

    def machine(self, name: str, **more: str | float) -> Machine:
        data = self.folder / name
        values = {"data_dir": str(data), "machine": name, "profile_store": self.place, **self.more, **more}
        config = settings.load({}, **values)
        return Machine(name, data, Snapshots(self.store, config.browsers, Redactor()))

    async def lease(self, machine: Machine, profile_id: str = "p1", **changes: Any) -> tuple[Grant, KeptLease]:
        request = LeaseRequest(
            profile_id=ProfileId(profile_id),
            worker_id=WorkerId("test"),
            incarnation=f"test-{os.urandom(4).hex()}",
            purpose=Purpose.MANUAL,
            machine=machine.name,
        )
        sent_at = boot_time()
        grant = await self.store.acquire(request)
        kept = self.heartbeat.keep(grant.lease, sent_at, lambda _why: None)
        self._kept.append(kept)
        newest = replace(grant, newest=self.newest, unsaved_on=self.unsaved_on, profile_store=None)
        return replace(newest, **changes), kept

    async def end(self, kept: KeptLease) -> None:
        """The lease ends, whatever became of the directory."""
        await self.store.settle([Ending(ref=kept.lease.ref, facts=EndFacts(browser=Browser.NONE))])
        self.heartbeat.drop(kept)

    async def run(self, machine: Machine, text: str | None, **changes: Any) -> Ending:
        """One run: the profile is brought, a browser writes `text` into it (None: nothing), it is saved, it ends."""
        grant, kept = await self.lease(machine, **changes)
        await machine.snapshots.bring(grant, kept)
        use(machine.directory(), grant, text)
        ending = Ending(ref=grant.lease.ref, facts=CLOSED, engine=150)
        ending = await machine.snapshots.saved(ending, grant, kept)
        if ending.snapshot is not None:
            self.newest = snapshot_of(grant, ending.snapshot)
        await self.end(kept)
        return ending


def use(directory: Path, grant: Grant, text: str | None) -> None:
    """What a browser leaves under a lease: the token is recorded, files are written, the directory is sealed."""
    directory.mkdir(parents=True, exist_ok=True)
    lease = grant.lease
    lock, _ = take_directory(str(directory), lease.token, lease.lease_id, lease.run_id)
    if not (directory / "Local State").exists():
        make_used(directory)
    if text is not None:
        (directory / "Default/Cookies").write_text(text)
    assert seal_directory(str(directory), lease.token)
    os.close(lock)


def snapshot_of(grant: Grant, new: NewSnapshot) -> Snapshot:
    lease = grant.lease
    return Snapshot(
        snapshot_id=SnapshotId(f"{lease.profile_id}-{lease.token}"),
        profile_id=lease.profile_id,
        account_id=lease.account_id,
        token=lease.token,
        run_id=lease.run_id,
        created_at=datetime.now(UTC),
        size_bytes=0,
        packed_bytes=new.packed_bytes,
        sha256=new.sha256,
        contents_hash=new.contents_hash,
        place=new.place,
        key_id=new.key_id,
    )


@asynccontextmanager
async def two_machines(
    url: str, folder: Path, place: str, *profiles: Profile, **more: str | float
) -> AsyncIterator[TwoMachines]:
    async with _opened(url, folder, place, {"secret_key": new_key(), **more}) as at:
        await at.store.apply(fleet(*(profiles or (profile("p1"),))), actor="test")
        yield at


@asynccontextmanager
async def reopened(stage: dict[str, Any]) -> AsyncIterator[tuple[TwoMachines, str]]:
    """The two machines of another process, and the machine that this one is on."""
    async with _opened(stage["url"], stage["folder"], stage["place"], stage["more"]) as at:
        at.newest = stage["newest"]
        yield at, stage["machine"]


@asynccontextmanager
async def _opened(url: str, folder: Path, place: str, more: dict[str, str | float]) -> AsyncIterator[TwoMachines]:
    config = settings.load({}, store=url)
    store = await open_store(url, policy=config.policy)
    heartbeat = Heartbeat(partial(open_store, url, policy=config.policy), config.policy.timing)
    try:
        yield TwoMachines(url, store, heartbeat, folder, place, more)
    finally:
        heartbeat.close()
        await store.close()
