"""A lease for plain `with` and Playwright's sync API: the async client, in a thread with an event loop of its own.

with leasekeeper.lease("store_us_018") as lease:
    context = playwright.chromium.launch_persistent_context(**lease.launch_options())

Knows no rules: every guarantee is the async client's. The lease is renewed whatever the caller's thread does.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasekeeper.client import Client, HeldLease
from leasekeeper.core.leases import Lease, Mode, Purpose
from leasekeeper.core.notes import NoteAbout
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.ports import Grant, Settled
from leasekeeper.sync_block import SyncBlock

if TYPE_CHECKING:
    from leasekeeper.core.browsers import Credentials


def lease(
    profile: str | None = None,
    *,
    pool: str | None = None,
    labels: Mapping[str, str] | None = None,
    store: str | None = None,
    purpose: Purpose | str = Purpose.API,
    mode: Mode | str = Mode.EXCLUSIVE,
    ttl: timedelta | float | None = None,
    release_policy: ReleasePolicy | str | None = None,
    wait: timedelta | float | None = None,
    worker_id: str | None = None,
    **settings: str | float,
) -> "SyncLease":
    """A lease of one profile for a plain `with` block. `store` and further settings are those of `connect`, the rest
    those of `Client.lease`. With an event loop of your own, use `connect` and `client.lease`."""
    options = {
        "pool": pool,
        "labels": labels,
        "purpose": purpose,
        "mode": mode,
        "ttl": ttl,
        "release_policy": release_policy,
        "wait": wait,
        "worker_id": worker_id,
    }
    return SyncLease(profile, options, store, settings)


class SyncLease(SyncBlock[HeldLease]):
    """A lease while it is held, as `HeldLease`, without `await`."""

    _function = "lease"

    def _lease_by(self, client: Client) -> HeldLease:
        return client.lease(self._profile, **self._options)

    @property
    def grant(self) -> Grant:
        """The lease with its profile, account and proxy. Only inside the block."""
        return self._held.grant

    @property
    def lease(self) -> Lease:
        return self._held.lease

    @property
    def token(self) -> int:
        """The fencing token: pass it to whatever should refuse a late writer."""
        return self._held.token

    @property
    def settled(self) -> Settled | None:
        """What became of the profile; None until the lease is released."""
        return self._held.settled

    def check(self) -> None:
        """Raise LeaseLost if the profile must not be touched any more. Cheap: call it before every step."""
        self._held.check()

    def checkpoint(self, step: str, *, url: str | None = None) -> None:
        """Record the last safe step: where another run could start over without harm."""
        self._loop_thread.call(self._held.checkpoint(step, url=url))

    def note(self, text: str, *, about: NoteAbout | str = NoteAbout.PROFILE) -> None:
        """Write a note on the profile, or with `about="account"` on its account."""
        self._loop_thread.call(self._held.note(text, about=about))

    @contextmanager
    def mutating(self, name: str, *, idempotent: bool = False) -> Iterator[None]:
        """A section that changes something for good. A program that dies inside it leaves the profile quarantined."""
        thread, section = self._loop_thread, self._held.mutating(name, idempotent=idempotent)
        thread.call(section.__aenter__())
        yield  # after an exception the section stays open: nobody knows what was submitted
        thread.call(section.__aexit__(None, None, None))

    def launch_options(self, *, headless: bool = True, args: Sequence[str] = ()) -> dict[str, Any]:
        """All that the profile declares, for `launch_persistent_context(**options)`. See `HeldLease.launch_options`."""
        return self._loop_thread.call(self._held.launch_options(headless=headless, args=args))

    def user_data_dir(self) -> Path:
        """The profile's directory alone, without its proxy and language. See `HeldLease.user_data_dir`."""
        return self._loop_thread.call(self._held.user_data_dir())

    def proxy_credentials(self) -> "Credentials | None":
        """User and password for the profile's proxy, if it has any. `launch_options` has them too."""
        return self._loop_thread.call(self._held.proxy_credentials())

    def closed(self, *, final_url: str | None = None) -> None:
        """Say that your browser was closed cleanly, and its last URL. Then even a failed run ends explained."""
        self._held.closed(final_url=final_url)

    def release(
        self, reason: str | None = None, message: str = "", *, output: Mapping[str, object] | None = None
    ) -> Settled:
        """End the run: completed, or stopped for a reason. Raises LeaseLost if the lease is not ours any more."""
        return self._loop_thread.call(self._held.release(reason, message, output=output), uncancelled=True)
