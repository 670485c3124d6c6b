"""Lost-run reports: what keepers on this machine wrote about runs whose worker is gone.

A worker creates a file for each run in `open/` before it launches a browser, and deletes it once the run is settled. A
file that stays is a run that nobody settled: its keeper's report, if there is one, is stored as evidence.
"""

import errno
import logging
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper_reports import ReportUnreadable, read_report, report_version
from leasekeeper.core.browsers import BrowserReport, EndCause
from leasekeeper.core.ids import LeaseId, Token, is_id
from leasekeeper.core.leases import Lease, LeaseRef, RunRecord
from leasekeeper.core.settle import LostFacts
from leasekeeper.errors import NotFound
from leasekeeper.evidence.delivery import deliver
from leasekeeper.evidence.files import Artifact, EvidenceFolder, EvidenceNotSaved
from leasekeeper.evidence.redact import Redactor
from leasekeeper.evidence_port import Evidence
from leasekeeper.ports import Resolution, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.evidence import RunEvidence, redacted, report_summary
from leasekeeper.snapshots.unchanged import snapshot_left_in
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

# The entry of a run whose record is gone, or whose keeper never reported, is deleted after this long.
FORGET_SECONDS: Final = 24 * 3600.0
# The maximum number of reports in memory: reading one again costs the hash of its screenshot.
MAX_READ: Final = 1_000
# The timeout to deliver all files of a lost run, and the pause after a delivery that failed.
DELIVER_SECONDS: Final = 10.0
TRY_AGAIN_SECONDS: Final = 30.0


class Ledger:
    """The runs in progress on this machine: one small file each."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir.absolute() / "open"
        self.runs_dir = data_dir.absolute() / "runs"

    def note(self, run_id: str, lease_id: str) -> None:
        """Create the entry of a run that is about to open a browser here."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / run_id).write_text(lease_id, encoding="utf-8")

    def pass_on(self, before: Lease, after: Lease) -> None:
        """Replace the entry of a settled run by that of the next run in its browser. One of them always exists.

        An error of the disk is ignored: the next run writes its entry again when it starts.
        """
        with suppress(OSError):
            self.note(after.run_id, after.lease_id)
            self.strike(before.run_id)

    def strike(self, run_id: str) -> None:
        """Delete the entry of a run that was settled, or whose report was delivered."""
        (self._folder / run_id).unlink(missing_ok=True)

    def path_of(self, run_id: str) -> Path:
        return self._folder / run_id

    def entries(self) -> Mapping[str, LeaseId]:
        """Run id → lease id of the runs that are not settled yet."""
        found: dict[str, LeaseId] = {}
        try:
            for path in self._folder.iterdir():
                if is_id(path.name):
                    with suppress(OSError, UnicodeDecodeError):
                        found[path.name] = LeaseId(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except OSError as error:
            _LOG.warning("%s cannot be read: %s; reports of lost runs are not stored", self._folder, error)
        return found

    def under_way(self) -> frozenset[str]:
        """The ids of these runs, also of unreadable entries. Raises OSError if the folder cannot be read."""
        try:
            return frozenset(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return frozenset()

    def age(self, run_id: str) -> float:
        """Seconds since the entry was written."""
        try:
            return time.time() - (self._folder / run_id).stat().st_mtime
        except OSError:
            return 0.0


class LostRunReports:
    """Reads the reports of this machine's keepers for sweepers: in a thread, and each report once.

    With a `place` the files of a run are delivered there before any facts name them.
    """

    def __init__(self, data_dir: Path, place: Evidence | None = None) -> None:
        self.ledger = Ledger(data_dir)
        self.place = place
        self._delivered: dict[str, dict[str, Artifact]] = {}
        self._try_at = 0.0
        self._read: dict[tuple[str, str], tuple[object, LostFacts]] = {}

    async def facts(self, lease: Lease) -> LostFacts:
        """The keeper's report on this lease's run; no facts if it ran on another machine or has not reported."""
        facts = await run_in_thread(self._facts, lease.run_id, lease.lease_id)
        return await self._deliver(lease.ref, facts)

    async def deliver(self, store: Store) -> int:
        """Store every report of a run that its worker did not settle. Any number may run at once. Returns the count."""
        delivered = 0
        for run_id, lease_id, facts in await run_in_thread(self._to_deliver):
            run = await _known(store, run_id)
            # In a store that was restored or created again, another run may have the same lease id.
            ours = run is not None and run.lease_id == lease_id
            said = False
            if run is not None and ours and facts.reported_by:
                delivered_facts = await self._deliver(_ref(run), facts)
                await store.resolve([Resolution(lease_id=lease_id, facts=delivered_facts)])
                said = True
            # Until a run has ended, its own worker may still settle it.
            over = run is None or run.ended_at is not None
            if over and (said or self.ledger.age(run_id) > FORGET_SECONDS):
                await run_in_thread(self._forget, run_id, lease_id)
                delivered += said
        return delivered

    async def _deliver(self, under: LeaseRef, facts: LostFacts) -> LostFacts:
        """Deliver the files of these facts to the place of evidence, in `DELIVER_SECONDS` at most. Returns facts that
        name only delivered files; `unsaved` says why one is missing.

        The other facts are returned whether or not that fails: a profile is resolved by them.
        """
        place, named = self.place, facts.evidence.get("artifacts")
        if place is None or not isinstance(named, list):
            return facts
        folder = EvidenceFolder(self.ledger.runs_dir, under.run_id)
        until = boot_time() + DELIVER_SECONDS
        arrived: list[object] = []
        evidence = {**facts.evidence, "place": place.location, "artifacts": arrived}
        for each in named:
            try:
                await self._deliver_once(place, folder, Artifact(**each), under, until)
            except EvidenceNotSaved as error:
                _LOG.warning("run %s: %s", under.run_id, error)
                evidence["unsaved"] = str(error)
                break
            arrived.append(each)
        if not arrived:
            del evidence["artifacts"]
        return replace(facts, evidence=evidence)

    async def _deliver_once(
        self, place: Evidence, folder: EvidenceFolder, artifact: Artifact, under: LeaseRef, until: float
    ) -> None:
        """Deliver a file until this time, unless it was delivered before. After a failure, raise EvidenceNotSaved at
        once for a while: sweepers ask often, and must not wait for a place that was just unavailable."""
        delivered = self._delivered.setdefault(folder.run_id, {})
        if delivered.get(artifact.name) == artifact:
            return
        if boot_time() < self._try_at:
            raise EvidenceNotSaved(
                errno.EREMOTEIO, f"evidence {artifact.name} could not be delivered; tried again later"
            )
        seconds = round(until - boot_time(), 1)
        if seconds <= 0:
            why = f"the files before it took {DELIVER_SECONDS:g} s"
            raise EvidenceNotSaved(errno.EREMOTEIO, f"evidence {artifact.name} could not be delivered: {why}")
        try:
            await deliver(place, folder, artifact, under, seconds=seconds)
        except EvidenceNotSaved:
            # Where earlier files arrived, the place may only be slow: the files of other runs are tried.
            if seconds >= DELIVER_SECONDS:
                self._try_at = boot_time() + TRY_AGAIN_SECONDS
            raise
        delivered[artifact.name] = artifact

    def _to_deliver(self) -> list[tuple[str, LeaseId, LostFacts]]:
        """The runs of the ledger with a report, or too old to get one. The store is not queried about others."""
        found = [(run, lease, self._facts(run, lease)) for run, lease in self.ledger.entries().items()]
        return [each for each in found if each[2].reported_by or self.ledger.age(each[0]) > FORGET_SECONDS]

    def _forget(self, run_id: str, lease_id: str) -> None:
        folder = self.ledger.runs_dir / run_id
        shutil.rmtree(folder / "profile", ignore_errors=True)
        for name in self._delivered.pop(run_id, {}):
            (folder / name).unlink(missing_ok=True)
        self.ledger.strike(run_id)
        self._read.pop((run_id, lease_id), None)

    def _facts(self, run_id: str, lease_id: str) -> LostFacts:
        folder = self.ledger.runs_dir / run_id
        version = report_version(folder)
        if version is None:
            return LostFacts()
        version = (version, _changed_at(folder))  # a task whose browser has ended may still attach a file
        known = self._read.get((run_id, lease_id))
        if known is None or known[0] != version:
            report = self._report(run_id, lease_id)
            if report is None:
                facts = LostFacts()
            else:
                facts = lost_facts(redacted(report, Redactor()), RunEvidence(self.ledger.runs_dir, run_id))
                facts = replace(facts, same_as=self._left_unchanged(report))
            known = self._read[run_id, lease_id] = (version, facts)
            while len(self._read) > MAX_READ:
                self._read.pop(next(iter(self._read)), None)
        return known[1]

    def _report(self, run_id: str, lease_id: str) -> BrowserReport | None:
        """The report on this run's browser; None if there is none that can be read, or no browser was opened."""
        try:
            report = read_report(self.ledger.runs_dir / run_id)
        except (ReportUnreadable, OSError) as error:
            _LOG.warning("%s", error)
            return None
        return None if report is None or report.lease_id != lease_id or report.no_browser else report

    def _left_unchanged(self, report: BrowserReport) -> Token | None:
        """The snapshot that the run left unchanged in its profile's directory here."""
        if not report.proof.processes_gone or not is_id(report.profile_id):
            return None
        directory = self.ledger.runs_dir.parent / "profiles" / report.profile_id
        return snapshot_left_in(directory, report.run_id, report.lease_id)


def _changed_at(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _ref(run: RunRecord) -> LeaseRef:
    return LeaseRef(
        lease_id=run.lease_id,
        profile_id=run.profile_id,
        run_id=run.run_id,
        token=run.token,
        routing_key=run.routing_key,
    )


async def _known(store: Store, run_id: str) -> RunRecord | None:
    try:
        return await store.get(RunRecord, run_id)
    except NotFound:
        return None


def lost_facts(report: BrowserReport, evidence: RunEvidence) -> LostFacts:
    """The facts by which a lost run is resolved: the keeper's report, and the files that the task attached."""
    if report.screenshot is not None:
        evidence.adopt_now(report.screenshot)
    evidence.adopt_attached()
    return LostFacts(
        final_url=report.final_url,
        browser_dead=report.proof.processes_gone,
        reported_by="another_worker" if report.cause is EndCause.OVERDUE else "keeper",
        evidence={**evidence.as_json(), "keeper": report_summary(report, completed=False)},
    )
