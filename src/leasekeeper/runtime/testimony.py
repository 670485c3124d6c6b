"""What keepers on this machine have to say about runs whose worker is gone.

A worker notes each run in `open/` before it launches and strikes it out once it is settled. What stays there is a run
that nobody settled: its keeper's report, when there is one, goes to the store as evidence, whoever resolves the run.
"""

import logging
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from leasekeeper.browsers.reports import KeeperReport, ReportUnreadable, read_report
from leasekeeper.core.ids import LeaseId, is_id
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.settle import LostFacts
from leasekeeper.errors import NotFound
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Resolution, Store
from leasekeeper.runtime.gathering import RunEvidence, redacted, told

_LOG = logging.getLogger(__name__)

# A run whose record is gone, or whose keeper never reported, is struck out after this long.
FORGET_SECONDS: Final = 24 * 3600.0


class Ledger:
    """The runs that are under way on this machine: one small file each."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir.absolute() / "open"
        self.runs_dir = data_dir.absolute() / "runs"

    def note(self, run_id: str, lease_id: str) -> None:
        """A run is about to open a browser here."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / run_id).write_text(lease_id, encoding="utf-8")

    def pass_on(self, before: Lease, after: Lease) -> None:
        """One run was settled and the next one gets its browser: at no moment nobody is noted.

        A disk that refuses is no reason to stop here: the next run is noted once more as it gets ready.
        """
        with suppress(OSError):
            self.note(after.run_id, after.lease_id)
            self.strike(before.run_id)

    def strike(self, run_id: str) -> None:
        """The run was settled, or its report has been delivered."""
        (self._folder / run_id).unlink(missing_ok=True)

    def entries(self) -> Mapping[str, LeaseId]:
        """Run id → lease id of what is not settled yet."""
        found: dict[str, LeaseId] = {}
        try:
            for path in self._folder.iterdir():
                if is_id(path.name):
                    with suppress(OSError, UnicodeDecodeError):
                        found[path.name] = LeaseId(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except OSError as error:
            _LOG.warning("%s cannot be read (%s): what keepers reported there is not known here", self._folder, error)
        return found

    def under_way(self) -> frozenset[str]:
        """The ids alone, also of what cannot be read. Raises OSError if nobody can tell."""
        try:
            return frozenset(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return frozenset()

    def age(self, run_id: str) -> float:
        """Seconds since the run was noted."""
        try:
            return time.time() - (self._folder / run_id).stat().st_mtime
        except OSError:
            return 0.0


class Testimony:
    """Reads the reports of this machine's keepers for sweepers."""

    def __init__(self, data_dir: Path) -> None:
        self.ledger = Ledger(data_dir)

    def facts(self, lease: Lease) -> LostFacts:
        """What the keeper of this lease's run saw; nothing, if it was on another machine or has not reported."""
        return self._facts(lease.run_id, lease.lease_id)

    async def deliver(self, store: Store) -> int:
        """Hand in every report of a run that its worker did not settle. Safe to run many times at once."""
        delivered = 0
        for run_id, lease_id in self.ledger.entries().items():
            run = await _known(store, run_id)
            # Lease ids are names: in a store that was made anew, or restored, another run may have the same.
            ours = run is not None and run.lease_id == lease_id
            facts = self._facts(run_id, lease_id) if ours else LostFacts()
            if facts.reported_by:
                await store.resolve([Resolution(lease_id=lease_id, facts=facts)])
            if self._is_over(run, run_id, reported=bool(facts.reported_by)):
                shutil.rmtree(self.ledger.runs_dir / run_id / "profile", ignore_errors=True)
                self.ledger.strike(run_id)
                delivered += bool(facts.reported_by)
        return delivered

    def _is_over(self, run: RunRecord | None, run_id: str, *, reported: bool) -> bool:
        """Whether nothing more is to be said about the run. Until it has ended, its own worker may still settle it."""
        over = run is None or run.ended_at is not None
        return over and (reported or self.ledger.age(run_id) > FORGET_SECONDS)

    def _facts(self, run_id: str, lease_id: str) -> LostFacts:
        try:
            report = read_report(self.ledger.runs_dir / run_id)
        except (ReportUnreadable, OSError) as error:
            _LOG.warning("%s", error)
            return LostFacts()
        if report is None or report.lease_id != lease_id or report.no_browser:
            return LostFacts()
        return lost_facts(redacted(report, Redactor()), RunEvidence(self.ledger.runs_dir, run_id))


async def _known(store: Store, run_id: str) -> RunRecord | None:
    try:
        return await store.get(RunRecord, run_id)
    except NotFound:
        return None


def lost_facts(report: KeeperReport, evidence: RunEvidence) -> LostFacts:
    """A keeper's report as the facts that a lost run is resolved by."""
    if report.screenshot is not None:
        evidence.adopt_now(report.screenshot)
    return LostFacts(
        final_url=report.final_url,
        browser_dead=report.proof.processes_gone,
        reported_by="keeper",
        evidence={**evidence.as_json(), "keeper": told(report)},
    )
