"""Launchers for one worker: the record of a profile's launcher, its token, and turns to call its API.

The limit of an API belongs to its credential: all launchers with the same token, and all workers of the store, share
the turns of one key.
"""

import asyncio
import os
from datetime import timedelta
from typing import Final

from leasekeeper.core.failures import Reason
from leasekeeper.core.launchers import Launcher, spacing
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import Fail, InputError, NotFound
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Store
from leasekeeper.secret_files import OTHERS, read_secret_file
from leasekeeper.threads import run_in_thread

# After a launcher did not answer, or had enough of calls: nobody calls it for so long.
BACK_OFF: Final = timedelta(seconds=30)


class Launchers:
    """What runs need of launchers. Every token that it reads is redacted from then on."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor

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
        """Wait for a turn to call the launcher, where it has a limit."""
        if launcher is not None:
            # One for the start, one for the question before it, and two for the end.
            await wait_for_turn(self._store, launcher, calls=4)

    async def back_off(self, launcher: Launcher | None, reason: str) -> None:
        """A launcher was away or refused a call for its number: nobody calls it for a while."""
        if launcher is not None and launcher.calls_per_minute and reason == Reason.LAUNCHER_UNAVAILABLE:
            await self._store.pace(pace_key(launcher), timedelta(), pause=BACK_OFF)


async def wait_for_turn(store: Store, launcher: Launcher, calls: int = 1) -> None:
    """Reserve so many calls, and wait until the first of them may be made."""
    if launcher.calls_per_minute:
        wait = await store.pace(pace_key(launcher), spacing(launcher) * calls)
        await asyncio.sleep(wait.total_seconds())


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
