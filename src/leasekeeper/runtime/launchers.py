"""Launchers for one worker: the record of a profile's launcher, its token, and turns to call its API.

The rate limit of an API belongs to its token: all launchers with the same token, and all workers of the store, share
the turns.
"""

import os
from asyncio import sleep
from contextlib import suppress
from datetime import timedelta
from typing import Final, Protocol

from leasekeeper.browsers.keeper.launcher_calls import CallFailed
from leasekeeper.browsers.probe import ProbeResult, judge
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.environment import engine_of, mismatch
from leasekeeper.core.failures import Reason
from leasekeeper.core.launchers import Launcher, spacing
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import Fail, InputError, LeasekeeperError, NotFound
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Store
from leasekeeper.secret_files import OTHERS, read_secret_file
from leasekeeper.threads import run_in_thread

# How long no profile is started in a launcher that did not answer, or refused a call because of its rate limit. The
# pause doubles each time that this happens to this worker again.
BACK_OFF_FIRST: Final = timedelta(seconds=2)
BACK_OFF_LAST: Final = timedelta(seconds=60)
# The time between starts after such a pause, also without a declared limit: all refused starts wait for its end.
APART_AFTER_REFUSAL: Final = timedelta(seconds=1)

# The newest engine of this many recent runs of a profile counts as the one that opened it last.
RECENT_RUNS: Final = 10


class LaunchedSession(Protocol):
    async def text_at(self, url: str) -> str | None: ...


class LaunchedBrowser(Protocol):
    """The part of an open browser that is read here: see `opening.Opened`."""

    @property
    def profile(self) -> Profile: ...

    @property
    def session(self) -> LaunchedSession: ...

    async def environment(self, timezone: str | None, *, untouched: bool) -> dict[str, str]: ...


class Launchers:
    """The launchers of one worker's runs. Every token that it reads is redacted from then on."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor
        self._refused: dict[str, int] = {}

    async def of(self, profile: Profile) -> tuple[Launcher | None, str | None]:
        """The profile's launcher and its token; (None, None) if the profile has no launcher. Raises Fail if one of them
        cannot be read."""
        if profile.launcher_id is None:
            return None, None
        try:
            launcher = await self._store.get(Launcher, profile.launcher_id)
        except NotFound as error:
            raise Fail(Reason.LAUNCHER_UNAVAILABLE, error.message) from error
        try:
            token = await run_in_thread(launcher_token, launcher)
        except InputError as error:
            raise Fail(Reason.SECRET_UNAVAILABLE, error.message) from error
        if token:
            self._redactor.add(token)
        return launcher, token

    async def turn(self, launcher: Launcher | None) -> None:
        """Wait for a turn to start a profile: because of the launcher's rate limit, or of a pause by `back_off`."""
        if launcher is not None:
            key = pace_key(launcher)
            # One call for the start, one for the check before it, and two for the end.
            apart = spacing(launcher) * 4
            if key in self._refused:
                apart = max(apart, APART_AFTER_REFUSAL)
            wait = await self._store.reserve_call(key, apart)
            await sleep(wait.total_seconds())

    async def back_off(
        self, launcher: Launcher | None, reason: str | None = None, retry_after: timedelta = timedelta()
    ) -> None:
        """Pause starts in a launcher that did not answer, or that refused a call because of its rate limit and asked
        for `retry_after`. Any other `reason`, or None for a start that succeeded, ends the back-off."""
        if launcher is None:
            return
        key = pace_key(launcher)
        if reason != Reason.LAUNCHER_UNAVAILABLE and not retry_after:
            self._refused.pop(key, None)
            return
        before = self._refused[key] = self._refused.get(key, -1) + 1
        pause = min(max(BACK_OFF_FIRST * 2 ** min(before, 10), retry_after), BACK_OFF_LAST)
        await self._store.reserve_call(key, timedelta(), pause=pause)

    async def refused_calls(self, profile: Profile, retry_after: timedelta) -> None:
        """Back off because calls at the end of a run exceeded the rate limit. Errors are ignored: the run must end."""
        with suppress(LeasekeeperError):
            launcher = await self._store.get(Launcher, profile.launcher_id or "")
            await self.back_off(launcher, Reason.LAUNCHER_UNAVAILABLE, retry_after)

    async def mismatch(self, opened: LaunchedBrowser, proxy: Proxy | None, probe_url: str | None) -> str | None:
        """How the launcher's browser differs from the declared profile, as a sentence; None if it does not."""
        profile = opened.profile
        seen = await opened.environment(profile.timezone, untouched=True)
        found = mismatch(profile, seen, await self._last_engine(profile))
        if found is not None or proxy is None or proxy.region is None or probe_url is None:
            return found
        text = await opened.session.text_at(probe_url)
        if text is None:
            return None  # no page could ask: the proxy's own check decides
        exits = judge(text.encode(), proxy.region)
        if exits.result is ProbeResult.OK:
            return None
        return f"a page exits elsewhere than proxy {proxy.proxy_id} is declared: {exits.detail}"

    async def _last_engine(self, profile: Profile) -> int | None:
        """The newest engine among the last runs of the profile."""
        runs = (await self._store.find(RunRecord, {"profile_id": profile.profile_id}, limit=RECENT_RUNS)).items
        engines = [engine_of(run.actual.get("browser")) for run in runs if run.actual]
        return max((engine for engine in engines if engine is not None), default=None)


async def wait_for_turn(store: Store, launcher: Launcher, calls: int = 1) -> None:
    """Reserve this many calls, and wait until the first of them may be made."""
    apart = spacing(launcher)
    if apart:
        wait = await store.reserve_call(pace_key(launcher), apart * calls)
        await sleep(wait.total_seconds())


async def note_refusal(store: Store, launcher: Launcher, error: CallFailed) -> None:
    """If a call exceeded the rate limit, pause starts in the launcher for as long as it asked, within our limits."""
    if error.rate_limited:
        pause = max(timedelta(seconds=error.retry_after or 0.0), BACK_OFF_FIRST)
        await store.reserve_call(pace_key(launcher), timedelta(), pause=min(pause, BACK_OFF_LAST))


def pace_key(launcher: Launcher) -> str:
    """The key of calls that share a rate limit: those with the same token, or without a token to the same launcher."""
    return f"launcher:{launcher.api_token or launcher.launcher_id}"


def launcher_token(launcher: Launcher) -> str | None:
    """The token that `env:NAME` or `file:PATH` names; None if none is declared. An InputError shows no secret."""
    if launcher.api_token is None:
        return None
    kind, _, place = launcher.api_token.partition(":")
    if kind == "env":
        found = os.environ.get(place)
        if not found:
            raise InputError(f"launcher {launcher.launcher_id}: this worker has no environment variable {place}")
        return found
    return read_secret_file(
        place, f"launcher {launcher.launcher_id}: token {launcher.api_token}", refuse=OTHERS
    ).strip()
