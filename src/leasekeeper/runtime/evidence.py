"""The evidence of one run while it is collected: files on disk, delivered to where evidence is kept, and whether all of
it could be saved.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from leasekeeper.app import Content
from leasekeeper.core.browsers import BrowserReport, EndCause
from leasekeeper.core.leases import LeaseRef
from leasekeeper.errors import InputError
from leasekeeper.evidence.delivery import EvidenceNotDelivered, deliver
from leasekeeper.evidence.files import MAX_ARTIFACTS, Artifact, EvidenceFolder, EvidenceNotSaved
from leasekeeper.evidence.redact import Redactor
from leasekeeper.evidence_port import Evidence
from leasekeeper.threads import run_in_thread

T = TypeVar("T")

MAX_COMMANDS = 20
MAX_DELIVERIES = 4  # of one run at the same time
# The maximum number and total size of a lost run's attached files that its record names: a sweep waits while they are
# hashed.
MAX_LOST_FILES = 50
MAX_LOST_BYTES = 128 * 1024 * 1024
RESERVED = frozenset({"final.png", "keeper.json", "last.png", "profile", "recording.lkr", "report.json", "status.json"})


class RunEvidence:
    """Collects what a run leaves behind. `unsaved` says why something is missing: such a run never counts as completed.

    With a `place`, each file is delivered there as soon as it is saved here. `failure` is the error behind `unsaved`.
    """

    def __init__(
        self, root: Path, run_id: str, *, place: Evidence | None = None, under: LeaseRef | None = None
    ) -> None:
        self.files = EvidenceFolder(root, run_id)
        self.artifacts: list[Artifact] = []
        self.notes: dict[str, object] = {}
        self.unsaved: str | None = None
        self.failure: EvidenceNotSaved | None = None
        self._place = place
        self._under = under
        self._saving: list[asyncio.Future[None]] = []
        self._deliveries = asyncio.Semaphore(MAX_DELIVERIES)

    @property
    def folder(self) -> Path:
        return self.files.path

    async def create(self) -> None:
        """Create the folder. Raises EvidenceNotSaved if the disk refuses: the run must not start then."""
        await self._run_save(self.files.create)

    async def attach(self, name: str, content: Content) -> None:
        """Save one artifact of the task. Raises EvidenceNotSaved if the disk refuses, and InputError for a reserved
        name, a file that does not exist, or too many files."""
        if _reserved(name):
            raise InputError(f"{name} is a name of Leasekeeper's own evidence; choose another")
        if isinstance(content, Path) and not content.is_file():
            raise InputError(f"evidence {name}: there is no file {content}")
        if len(self.artifacts) >= MAX_ARTIFACTS - len(RESERVED):
            raise InputError(f"run {self.files.run_id} already has {len(self.artifacts)} evidence files: no more fit")
        await self._save(name, content)

    async def _save(self, name: str, content: Content) -> None:
        artifact = await self._run_save(lambda: self._write(name, content))
        self.artifacts.append(artifact)
        self._deliver_soon(artifact)

    def save_soon(self, name: str, content: bytes) -> None:
        """Save one of our own files in the background; `saved` waits for it. A failure is kept in `unsaved`, and
        decides how the run ends."""
        self._saving.append(asyncio.ensure_future(self._try_attach(name, content)))

    async def saved(self) -> None:
        """Wait until every background save and delivery has succeeded or failed."""
        while self._saving:
            await self._saving.pop()

    async def _try_attach(self, name: str, content: bytes) -> None:
        with suppress(EvidenceNotSaved):
            try:
                await self._save(name, content)
            except InputError as error:
                self.unsaved = str(error)

    async def adopt(self, report: BrowserReport, *, reason: str | None) -> None:
        """Add the keeper's report and its screenshot. `reason` is why the run ended (None: it completed)."""
        if report.screenshot is not None:
            found = await run_in_thread(self.adopt_now, report.screenshot)
            if found is not None:
                self._deliver_soon(found)
        self.notes["keeper"] = report_summary(report, completed=reason is None and self.unsaved is None)

    def adopt_now(self, name: str) -> Artifact | None:
        """Record a file that is in the folder already as an artifact, without delivering it. Returns None if it does
        not exist or cannot be read."""
        try:
            found = self.files.adopt(name)
        except (EvidenceNotSaved, InputError) as error:
            self.unsaved = str(error)
            return None
        if found is not None:
            self.artifacts.append(found)
        return found

    def adopt_attached(self) -> None:
        """Record the files that the task of a lost run attached: the finished ones whose names are not reserved.

        Those above `MAX_LOST_FILES` or `MAX_LOST_BYTES` stay in the folder, and `unsaved` says how many they are.
        """
        files, room, left_out = 0, MAX_LOST_BYTES, 0
        for name, size in self.files.finished().items():
            if _reserved(name):
                continue
            if files >= MAX_LOST_FILES or size > room:
                left_out += 1
                continue
            files, room = files + 1, room - size
            self.adopt_now(name)
        if left_out and self.unsaved is None:
            self.unsaved = (
                f"the record of a lost run names at most {MAX_LOST_FILES} files and {MAX_LOST_BYTES // 1024**2} MiB of "
                f"what the task attached; the rest ({left_out}) is only in the run's folder on its machine"
            )

    def discard(self) -> None:
        """Delete the local copies of delivered files. Call it once the run is settled."""
        for artifact in self.artifacts if self._place is not None else ():
            with suppress(OSError):
                (self.folder / artifact.name).unlink()

    def as_json(self) -> dict[str, object]:
        """The record that goes to the store: names and hashes, never contents."""
        record: dict[str, object] = {"folder": self.files.run_id, **self.notes}
        if self._place is not None:
            record["place"] = self._place.location
        if self.artifacts:
            record["artifacts"] = [artifact.as_json() for artifact in self.artifacts]
        if self.unsaved is not None:
            record["unsaved"] = self.unsaved
        return record

    def _write(self, name: str, content: Content) -> Artifact:
        if isinstance(content, Path):
            return self.files.copy(name, content)
        return self.files.write(name, content.encode() if isinstance(content, str) else content)

    def _deliver_soon(self, artifact: Artifact) -> None:
        if self._place is not None:
            self._saving.append(asyncio.ensure_future(self._deliver(self._place, artifact)))

    async def _deliver(self, place: Evidence, artifact: Artifact) -> None:
        async with self._deliveries:
            try:
                if isinstance(self.failure, EvidenceNotDelivered):
                    raise self.failure  # the run cannot complete any more: do not wait for the place again
                await deliver(place, self.files, artifact, self._under)
            except EvidenceNotSaved as error:
                # A record names only what can be found.
                self.artifacts.remove(artifact)
                self.unsaved, self.failure = str(error), error

    async def _run_save(self, save: Callable[[], T]) -> T:
        """Run `save` in a thread; if it fails, keep the error in `unsaved` and `failure` and raise it."""
        try:
            return await run_in_thread(save)
        except EvidenceNotSaved as error:
            self.unsaved, self.failure = str(error), error
            raise


def _reserved(name: str) -> bool:
    return name.removesuffix(".part") in RESERVED


def redacted(report: BrowserReport, redactor: Redactor) -> BrowserReport:
    """A keeper's report without the secrets in its URLs: the keeper itself does not know them."""
    commands = tuple(replace(command, url=redactor.url(command.url)) for command in report.commands)
    url = report.final_url
    return replace(report, final_url=url if url is None else redactor.url(url), commands=commands)


def report_summary(report: BrowserReport, *, completed: bool) -> dict[str, object]:
    """The keeper's report as JSON for the run's record: how the browser ended and, unless all went well, its last
    commands.

    After most failures the browser is closed cleanly too: its last commands then show what led to the failure.
    """
    ended: dict[str, object] = {
        "cause": report.cause,
        "stopped_by": report.stopped_by,
        "clean_close": report.proof.holds,
    }
    commands = [
        {"at": round(command.at, 3), "method": command.method, "url": command.url}
        for command in report.commands[-MAX_COMMANDS:]
    ]
    if report.proof.holds and report.cause is EndCause.CLOSED:
        return ended if completed else {**ended, "commands": commands}
    return {
        **ended,
        "revoke_reason": report.revoke_reason,
        "exit_code": report.exit_code,
        "signal": report.signal,
        "failing_clause": report.proof.failing_clause,
        "clauses": dict(report.proof.clauses),
        "started_at": report.started_at,
        "ended_at": report.ended_at,
        "commands": commands,
    }
