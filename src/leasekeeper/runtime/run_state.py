"""What is known of one run in progress: its lease, browser, evidence, timings. Decides nothing."""

from dataclasses import dataclass, field

from leasekeeper.app import Task
from leasekeeper.core.browsers import BrowserReport
from leasekeeper.core.snapshots import Verdict
from leasekeeper.ports import Grant
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.evidence import RunEvidence
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.opening import Opened
from leasekeeper.runtime.recording import NAME, Recording
from leasekeeper.runtime.tracing import Step


@dataclass(slots=True, kw_only=True)
class RunState:
    """One run in progress."""

    grant: Grant
    task: Task
    guard: LeaseGuard
    evidence: RunEvidence
    opened: Opened | None = None
    actual: dict[str, str] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    final_url: str | None = None
    report: BrowserReport | None = None
    unproven: str = ""
    verdict: Verdict = Verdict.NOT_ASKED
    given_away: bool = False
    recording: Recording | None = None
    trace: Step = field(default_factory=Step)
    began: float = field(default_factory=boot_time)

    def inherit(self, report: BrowserReport | None) -> None:
        """The browser that was to be handed over to this run has ended instead. If its close is not proven clean, this
        run has to report that."""
        self.report = report
        if report is None or not report.proof.holds:
            self.unproven = report.proof.failing_clause if report else "the browser's keeper left no report"

    def continue_under(self, grant: Grant, guard: LeaseGuard, evidence: RunEvidence) -> None:
        """A person had the browser and handed it back: this is another run of the same job."""
        self.grant, self.guard, self.evidence = grant, guard, evidence
        self.given_away, self.timings, self.began = False, {}, boot_time()

    def start_recording(self, opened: Opened) -> None:
        """Record this run, if its task or its profile wants that."""
        if self.task.record or self.grant.profile.record:
            self.recording = Recording(opened.browser)
            self.recording.start()

    async def end_recording(self) -> None:
        """Stop recording, and save the recording as evidence."""
        recording, self.recording = self.recording, None
        found = await recording.stop() if recording is not None else None
        if found is not None:
            self.evidence.save_soon(NAME, found)

    def record_time(self, phase: str, since: float) -> None:
        self.timings[phase] = round(boot_time() - since, 4)
