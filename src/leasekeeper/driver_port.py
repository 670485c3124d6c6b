"""The driver protocol: what opens a profile's browser, and what each driver must promise.

It is one of the two main interfaces of the system; the other is `Store`, in `ports.py`. Values that are passed here are
frozen; their types are in `core.browsers`.
"""

from dataclasses import dataclass, field
from typing import Protocol

from leasekeeper.core.browsers import (
    BrowserReport,
    Capacity,
    Checked,
    Credentials,
    DriverInfo,
    Endpoint,
    LaunchRefusal,
    LeaseTerms,
    Usage,
)
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import Fail
from leasekeeper.ports import Grant


def works_in_copy(grant: Grant) -> bool:
    """Whether a run gets a copy: it shares its profile, asked for an isolated session, or the profile is disposable."""
    isolated = grant.job is not None and grant.job.isolated
    return isolated or grant.lease.shared or grant.profile.disposable


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A run that needs a browser: its grant, whether the browser has a window, the login of its proxy.

    `launcher` keeps the profile if this machine does not; `launcher_token` is for its API.
    """

    grant: Grant
    run_mode: RunMode
    credentials: Credentials | None = None
    launcher: Launcher | None = None
    launcher_token: str | None = field(default=None, repr=False)

    @property
    def throwaway(self) -> bool:
        """Whether the run may not change its profile, and so works in a copy."""
        return works_in_copy(self.grant)


class CannotOpen(Fail):
    """A profile that its driver must not open now. `give_back`: the job was not touched and keeps its place.

    `engine`: the newer browser that used it last. `directory_token`: the directory was opened under this token of
    another store.
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        give_back: bool = False,
        engine: int | None = None,
        directory_token: int | None = None,
    ) -> None:
        super().__init__(reason, detail)
        self.give_back = give_back
        self.engine = engine
        self.directory_token = directory_token


class Driver(Protocol):
    """Opens browsers of one kind, each under a lease. Implementations: `local`, `launcher`, `null`: `Profile.driver`.

    A driver knows profiles and proxies, but no store, job or task. Guarantees, for each of them:

    - Only `start` starts anything, and only for the lease in its terms. What it started runs behind a keeper: past the
      deadline, at a revocation, or when the worker is gone, nothing more reaches the browser, and it ends by itself,
      without the worker's help (I2).
    - A profile is never opened under a token below one that it was opened under before (I3), nor while another program
      has it open (I6).
    - What cannot be proven is not claimed: a report with a valid proof means that the session is saved on disk, or
      wherever the driver keeps it (I7).
    """

    @property
    def capacity(self) -> Capacity:
        """How many browsers of this kind a worker may open."""
        ...

    async def prepare(self) -> DriverInfo:
        """Check once what this machine has. Raises InputError that says what is missing and how to get it."""
        ...

    async def ready(self) -> DriverInfo:
        """Check again what this machine has: a browser may have been upgraded since `prepare`. Quick: called before
        each claim.

        Raises InputError while no more profiles should be opened here, with the reason.
        """
        ...

    async def status(self, profile: Profile) -> Usage:
        """Which programs use the profile outside any lease, as far as the driver can see. Changes nothing."""
        ...

    async def check(self, request: OpenRequest) -> Checked:
        """Check that the profile may be opened under this lease. Starts nothing. Raises CannotOpen or Fail."""
        ...

    async def accept_manual_use(self, request: OpenRequest) -> None:
        """The use outside a lease that `check` found was recorded: do not report it again. Raises Fail if refused."""
        ...

    async def start(self, request: OpenRequest, terms: LeaseTerms) -> "RunningBrowser":
        """Make the browser reachable under these terms. Raises Fail or InputError; then nothing of it is left running.

        The browser itself may start only when its endpoint is first used; always call `stop`.
        """
        ...

    async def close(self) -> None:
        """Release the driver's own resources. Its browsers were stopped before."""
        ...


class ClientRefused(Exception):
    """A browser took no further DevTools client; the text says why."""


class DevToolsClient(Protocol):
    """One more client of a running browser, beside the program that launched it: whole DevTools messages both ways.

    It has a browser session of its own and never sees what others do with theirs. What it sends past the lease's
    deadline reaches nothing.
    """

    why: str
    """Why it was disconnected; empty if it closed the connection itself."""

    async def send(self, message: bytes) -> None:
        """Send one command. Waits while the browser does not read from the connection."""
        ...

    async def receive(self) -> bytes | None:
        """The next answer or event; None once disconnected."""
        ...

    async def close(self) -> None:
        """Disconnect. All browser sessions of this client end."""
        ...


class RunningBrowser(Protocol):
    """One browser from its start to its report. `extend` and `revoke` may be called from any thread, never block and
    never raise."""

    @property
    def endpoint(self) -> Endpoint:
        """How to reach it."""
        ...

    @property
    def info(self) -> DriverInfo:
        """Which browser it is: program and version."""
        ...

    @property
    def engine(self) -> int | None:
        """The browser version that opened the profile itself; None if the run works in a copy, or has no version."""
        ...

    @property
    def begun(self) -> bool:
        """Whether a browser may have been started."""
        ...

    @property
    def pid(self) -> int | None:
        """The session leader of the browser's processes; None while there is none on this machine."""
        ...

    @property
    def relayed_bytes(self) -> int:
        """About how many bytes it has sent to the program that launched it: that program's memory grows with them."""
        ...

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        ...

    def extend(self, deadline: float, kill_at: float) -> None:
        """The lease was renewed."""
        ...

    def revoke(self, why: str) -> None:
        """The lease is over: end the browser now. `why` goes into the report."""
        ...

    async def hand_over(self, terms: LeaseTerms) -> None:
        """Continue under another lease with a higher token. Raises if refused: the browser must then be stopped."""
        ...

    async def pause(self, why: str) -> None:
        """A person takes control: when this returns, no acting command of the launching program reaches the browser,
        and every other client is disconnected. Raises if the keeper does not confirm: the browser must then be stopped.
        """
        ...

    def resume(self) -> None:
        """The program that launched it has control again. What it sent meanwhile is executed now."""
        ...

    async def add_client(self) -> DevToolsClient:
        """Connect one more program to the browser. Raises ClientRefused."""
        ...

    async def close_asked(self) -> None:
        """Wait until a client asks to close the browser, or until it ends. Whether to close is for the holder to
        decide.
        """
        ...

    async def ended(self, timeout: float) -> BrowserReport | None:
        """Wait for its end and return the report; None on timeout, or if there is no report (then `over` is true)."""
        ...

    async def closing(self, timeout: float) -> None:
        """Wait until a requested stop has begun: users of the endpoint may then disconnect."""
        ...

    async def stop(self, *, revoke: str | None = None, with_evidence: bool = False) -> BrowserReport | None:
        """End it, as gently as the time allows, and return the report; None if nothing is known of its end.

        `revoke`: why it must end at once, whatever it is doing. `with_evidence`: the keeper takes URL and screenshot
        itself. When this returns, nothing of the browser is alive that this process could end.
        """
        ...

    def refusal(self) -> LaunchRefusal | None:
        """Why there was no browser, if it was refused after `start`: with a reason of the failure table."""
        ...
