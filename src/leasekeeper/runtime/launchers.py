"""Launchers for one worker: the record of a profile's launcher, its token, and turns to call its API.

The limit of an API belongs to its credential: all launchers with the same token, and all workers of the store, share
the turns of one key.
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

# After a launcher did not answer, or had enough of calls, nobody starts a profile in it for so long: twice as long each
# time that this worker meets it so again.
BACK_OFF_FIRST: Final = timedelta(seconds=2)
BACK_OFF_LAST: Final = timedelta(seconds=60)
# After such a pause starts come one by one, also where no limit is declared: all that were refused wait for its end.
APART_AFTER_REFUSAL: Final = timedelta(seconds=1)

# Of so many runs of a profile the newest engine counts as the one that it was last opened by.
RECENT_RUNS: Final = 10


class LaunchedSession(Protocol):
    async def text_at(self, url: str) -> str | None: ...


class LaunchedBrowser(Protocol):
    """What is asked of an open browser of a launcher: see `opening.Opened`."""

    @property
    def profile(self) -> Profile: ...

    @property
    def session(self) -> LaunchedSession: ...

    async def environment(self, timezone: str | None, *, untouched: bool) -> dict[str, str]: ...


class Launchers:
    """What runs need of launchers. Every token that it reads is redacted from then on."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor
        self._refused: dict[str, int] = {}

    async def of(self, profile: Profile) -> tuple[Launcher | None, str | None]:
        """The launcher that has the profile, and its token; neither for a profile of this machine. Raises Fail."""
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
        """Wait for a turn to call the launcher: where it has a limit, and after it was away."""
        if launcher is not None:
            key = pace_key(launcher)
            # One for the start, one for the question before it, and two for the end.
            apart = spacing(launcher) * 4
            if key in self._refused:
                apart = max(apart, APART_AFTER_REFUSAL)
            wait = await self._store.reserve_call(key, apart)
            await sleep(wait.total_seconds())

    async def back_off(
        self, launcher: Launcher | None, reason: str | None = None, retry_after: timedelta = timedelta()
    ) -> None:
        """A launcher was away or refused a call for its number: nobody calls it for a while, at least `retry_after` if
        it said so. Without a `reason` it started a profile."""
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
        """Calls at the end of a run were too many. Whoever ends a run has to end it, also where this cannot be kept."""
        with suppress(LeasekeeperError):
            launcher = await self._store.get(Launcher, profile.launcher_id or "")
            await self.back_off(launcher, Reason.LAUNCHER_UNAVAILABLE, retry_after)

    async def mismatch(self, opened: LaunchedBrowser, proxy: Proxy | None, probe_url: str | None) -> str | None:
        """How the launcher's browser differs from what the profile is declared to be, as a sentence."""
        profile = opened.profile
        seen = await opened.environment(profile.timezone, untouched=True)
        found = mismatch(profile, seen, await self._last_engine(profile))
        if found is not None or proxy is None or proxy.region is None or probe_url is None:
            return found
        text = await opened.session.text_at(probe_url)
        if text is None:
            return None  # no page could ask: the proxy's own check has the word
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
    """Reserve so many calls, and wait until the first of them may be made."""
    apart = spacing(launcher)
    if apart:
        wait = await store.reserve_call(pace_key(launcher), apart * calls)
        await sleep(wait.total_seconds())


async def note_refusal(store: Store, launcher: Launcher, error: CallFailed) -> None:
    """A question of ours was one call too many: nobody starts a profile there for as long as the launcher said."""
    if error.rate_limited:
        pause = max(timedelta(seconds=error.retry_after or 0.0), BACK_OFF_FIRST)
        await store.reserve_call(pace_key(launcher), timedelta(), pause=min(pause, BACK_OFF_LAST))


def pace_key(launcher: Launcher) -> str:
    """Whose calls count together: those under one token; without one, those to one launcher."""
    return f"launcher:{launcher.api_token or launcher.launcher_id}"


def launcher_token(launcher: Launcher) -> str | None:
    """What `env:NAME` or `file:PATH` leads to. Raises InputError that shows no secret."""
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
