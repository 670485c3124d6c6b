"""The evidence of one run while it is collected: files on disk, and whether all of it could be saved."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from leasekeeper.app import Content
from leasekeeper.core.browsers import BrowserReport
from leasekeeper.errors import InputError
from leasekeeper.evidence.files import MAX_ARTIFACTS, Artifact, EvidenceFolder, EvidenceNotSaved
from leasekeeper.evidence.redact import Redactor
from leasekeeper.threads import run_in_thread

MAX_COMMANDS = 20
RESERVED = frozenset({"final.png", "keeper.json", "last.png", "profile", "report.json", "status.json"})


class RunEvidence:
    """What a run leaves behind. `unsaved` says why something is missing: such a run never counts as completed."""

    def __init__(self, root: Path, run_id: str) -> None:
        self.files = EvidenceFolder(root, run_id)
        self.artifacts: list[Artifact] = []
        self.notes: dict[str, object] = {}
        self.unsaved: str | None = None
        self._saving: list[asyncio.Future[None]] = []

    @property
    def folder(self) -> Path:
        return self.files.path

    async def create(self) -> None:
        """Make the folder. A disk that refuses is a reason not to start."""
        await self._keep(self.files.create)

    async def attach(self, name: str, content: Content) -> None:
        """Save one artifact; raises EvidenceNotSaved if the disk refuses, also to the task that asked for it."""
        if name.removesuffix(".part") in RESERVED:
            raise InputError(f"{name} is a name of Leasekeeper's own evidence; choose another")
        if isinstance(content, Path) and not content.is_file():
            raise InputError(f"evidence {name}: there is no file {content}")
        if len(self.artifacts) >= MAX_ARTIFACTS - len(RESERVED):
            raise InputError(f"run {self.files.run_id} already has {len(self.artifacts)} evidence files: no more fit")
        await self._save(name, content)

    async def _save(self, name: str, content: Content) -> None:
        await self._keep(lambda: self.artifacts.append(self._write(name, content)))

    def save_soon(self, name: str, content: bytes) -> None:
        """The same beside other work: `saved` waits for it. A refusal is noted, and decides how the run ends."""
        self._saving.append(asyncio.ensure_future(self._try_attach(name, content)))

    async def saved(self) -> None:
        """Wait until all that was to be saved soon is on disk, or was refused."""
        while self._saving:
            await self._saving.pop()

    async def _try_attach(self, name: str, content: bytes) -> None:
        with suppress(EvidenceNotSaved):
            try:
                await self._save(name, content)
            except InputError as error:
                self.unsaved = str(error)

    async def adopt(self, report: BrowserReport) -> None:
        """What the keeper saw, as evidence of this run."""
        if report.screenshot is not None:
            await run_in_thread(self.adopt_now, report.screenshot)
        self.notes["keeper"] = report_summary(report)

    def adopt_now(self, name: str) -> None:
        """Take a file that is in the folder already as an artifact."""
        try:
            found = self.files.adopt(name)
        except (EvidenceNotSaved, InputError) as error:
            self.unsaved = str(error)
            return
        if found is not None:
            self.artifacts.append(found)

    def as_json(self) -> dict[str, object]:
        """The record that goes to the store: names and hashes, never contents."""
        record: dict[str, object] = {"folder": self.files.run_id, **self.notes}
        if self.artifacts:
            record["artifacts"] = [artifact.as_json() for artifact in self.artifacts]
        if self.unsaved is not None:
            record["unsaved"] = self.unsaved
        return record

    def _write(self, name: str, content: Content) -> Artifact:
        if isinstance(content, Path):
            return self.files.copy(name, content)
        return self.files.write(name, content.encode() if isinstance(content, str) else content)

    async def _keep(self, save: Callable[[], None]) -> None:
        try:
            await run_in_thread(save)
        except EvidenceNotSaved as error:
            self.unsaved = str(error)
            raise


def redacted(report: BrowserReport, redactor: Redactor) -> BrowserReport:
    """A keeper's report with its addresses as they may be kept: the keeper itself knows no secrets."""
    commands = tuple(replace(command, url=redactor.url(command.url)) for command in report.commands)
    url = report.final_url
    return replace(report, final_url=url if url is None else redactor.url(url), commands=commands)


def report_summary(report: BrowserReport) -> dict[str, object]:
    """The keeper's report as a record keeps it: how the browser ended and, unless all went well, what it did last."""
    ended: dict[str, object] = {
        "cause": report.cause,
        "stopped_by": report.stopped_by,
        "clean_close": report.proof.holds,
    }
    if report.proof.holds and report.cause == "closed":
        return ended
    return {
        **ended,
        "revoke_reason": report.revoke_reason,
        "exit_code": report.exit_code,
        "signal": report.signal,
        "failing_clause": report.proof.failing_clause,
        "commands": [
            {"at": round(command.at, 3), "method": command.method, "url": command.url}
            for command in report.commands[-MAX_COMMANDS:]
        ],
    }
