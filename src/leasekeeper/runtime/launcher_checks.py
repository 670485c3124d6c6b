"""Asks launchers whether the browser of a lost run still runs. Every machine that reaches a launcher asks it, until it
answers.

A profile whose launcher does not answer stays stale. A browser that still runs is stopped, then the launcher is
asked again. Each question is reserved in the store, so that only one asker calls the launcher. Before each stop the
store is asked whether the profile was granted again: the stop names only the profile.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple, TypeVar

from leasekeeper.browsers.keeper.launcher_calls import CallFailed
from leasekeeper.browsers.launcher_status import NotOurs, ask
from leasekeeper.browsers.launchers import describe
from leasekeeper.core.launchers import Launcher, LauncherSaid, can_be_asked_from, start_over_at
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.settle import LostFacts
from leasekeeper.errors import InputError, LeasekeeperError, NotFound
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Resolution, Settled, Store
from leasekeeper.runtime.launchers import launcher_token, note_refusal, wait_for_turn
from leasekeeper.threads import run_in_thread

# How long a question is reserved for one asker: longer than its turn, its calls and its answer take.
RESERVE_FOR: Final = timedelta(seconds=60)
# The store's timeout to say whether a profile may be stopped.
CHECK_SECONDS: Final = 10.0
# The timeout of one whole pass: a sweep must not wait for launchers that do not answer.
PASS_SECONDS: Final = 30.0


T = TypeVar("T")


class Question(NamedTuple):
    """A lost run to ask its launcher about. `known` are the facts without the launcher's answer."""

    lease: Lease
    profile: Profile
    launcher: Launcher
    token: str | None
    known: LostFacts


class LauncherAsker:
    """Asks the launchers that this machine reaches. `known` returns the facts of a lost run without their answers."""

    def __init__(
        self, store: Store, machine: Callable[[], str | None], known: Callable[[Lease], Awaitable[LostFacts]]
    ) -> None:
        self._store = store
        self._machine = machine
        self._known = known

    async def ask_due(self) -> list[Settled]:
        """Ask about every lost run that is due. Returns those that were resolved by an answer."""
        lost = await self._store.unresolved()
        return await self.ask(await self.askable(lost)) if lost else []

    async def askable(self, lost: Sequence[Lease]) -> list[Question]:
        """The lost runs whose launcher this machine reaches and must ask: without its answer they are not resolved."""
        if not lost or not (await self._store.find(Launcher, limit=1)).items:
            return []
        found: list[Question] = []
        machine = await run_in_thread(self._machine)
        launchers: dict[str, tuple[Launcher, str | None] | None] = {}
        for lease in lost:
            profile = await self._get(Profile, lease.profile_id)
            if profile is None or profile.launcher_id is None:
                continue
            if profile.launcher_id not in launchers:
                launchers[profile.launcher_id] = await self._reach(profile.launcher_id)
            reached = launchers[profile.launcher_id]
            if reached is None or not can_be_asked_from(reached[0], lease.machine, machine):
                continue
            known = await self._known(lease)
            if not known.browser_dead:
                found.append(Question(lease, profile, *reached, known))
        return found

    async def ask(self, questions: Sequence[Question]) -> list[Settled]:
        """Ask these questions. Returns the runs that were resolved. After a failed call the launcher is not called
        again in this pass: its other runs count as unanswered."""
        by_launcher: dict[str, list[Question]] = {}
        for each in questions:
            by_launcher.setdefault(each.launcher.launcher_id, []).append(each)
        done: list[Settled] = []

        async def ask_one(asked: Sequence[Question]) -> None:
            async for settled in self._ask_launcher(asked):
                done.extend(settled)

        passes = asyncio.gather(*(ask_one(asked) for asked in by_launcher.values()))
        with suppress(TimeoutError):  # the rest is still due
            async with asyncio.timeout(PASS_SECONDS):
                await passes
        return done

    async def _get(self, kind: type[T], key: str) -> T | None:
        try:
            return await self._store.get(kind, key)
        except NotFound:
            return None

    async def _reach(self, launcher_id: str) -> tuple[Launcher, str | None] | None:
        """The launcher and its token; None if this machine cannot ask it. Another machine may."""
        launcher = await self._get(Launcher, launcher_id)
        try:
            return None if launcher is None else (launcher, await run_in_thread(launcher_token, launcher))
        except InputError:
            return None

    async def _ask_launcher(self, questions: Sequence[Question]) -> AsyncIterator[list[Settled]]:
        silent = ""
        for lease, profile, launcher, token, known in questions:
            # The list may be 30 s old, and other machines have it too.
            if not await self._store.reserve_launcher_checks([lease.lease_id], RESERVE_FOR):
                continue
            said = LauncherSaid.SILENT
            if not silent:
                await wait_for_turn(self._store, launcher, calls=2)
                description = describe(launcher, profile.launcher_profile or "", headless=True, token=token)
                try:
                    said = await run_in_thread(ask, description, self._may_stop(lease))
                except NotOurs:
                    continue
                except CallFailed as error:
                    silent = Redactor((token,) if token else ()).text(str(error))
                    await note_refusal(self._store, launcher, error)
            problem = silent
            if said is LauncherSaid.IDLE and await self._may_be_starting(lease, launcher, known):
                said, problem = LauncherSaid.SILENT, "its start may still be under way"
            facts = replace(known, browser_dead=said is LauncherSaid.IDLE, launcher=said, problem=problem)
            yield await self._store.resolve([Resolution(lease_id=lease.lease_id, facts=facts)])

    def _may_stop(self, lease: Lease) -> Callable[[], bool]:
        """A check for a thread that is about to stop the browser: True if the profile was not granted again since."""
        loop = asyncio.get_running_loop()

        async def ours() -> bool:
            return (await self._store.get(Lane, lease.profile_id)).token == lease.token

        def may_stop() -> bool:
            try:
                return asyncio.run_coroutine_threadsafe(ours(), loop).result(CHECK_SECONDS)
            except (LeasekeeperError, TimeoutError, RuntimeError):
                return False

        return may_stop

    async def _may_be_starting(self, lease: Lease, launcher: Launcher, known: LostFacts) -> bool:
        """Whether a start by the lost run may still be in progress: its browser was never seen, and the launcher's
        start timeout has not passed."""
        if lease.last_safe_step is not None or known.final_url is not None:
            return False
        over_at = start_over_at(lease.ended_at or lease.expires_at, launcher.start_timeout_seconds)
        return (await self._store.check()).now < over_at
