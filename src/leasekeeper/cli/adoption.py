"""What `leasekeeper apply` does about directories that contain used profiles: shows them, asks once, adopts them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.connection import missing, settings, with_store
from leasekeeper.errors import PartlyDone

if TYPE_CHECKING:
    from leasekeeper.browsers.adopting import UsedDirectory
    from leasekeeper.core.fleet import Fleet
    from leasekeeper.core.profiles import Profile
    from leasekeeper.ports import Store

MAX_SHOWN: Final = 100


@dataclass(slots=True)
class Adoption:
    """The used directories of one fleet, and what became of each: `refused` has the reason by profile."""

    ready: list["UsedDirectory"]
    refused: dict[str, str]
    found: list["UsedDirectory"]
    adopted: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, fleet: "Fleet", store: str | None, *, prune: bool) -> "Adoption":
        """Read the directories of the fleet's profiles on this machine. With `prune` no other profile has one."""
        from leasekeeper.browsers.adopting import find_used

        config = settings(store)
        data_dir, own = Path(config.browsers.data_dir), list(fleet.profiles.values())
        found = find_used(own, own, data_dir)
        if found and not prune and missing(config.store) is None:
            known = {profile.profile_id: profile for profile in with_store(store, _all_profiles)}
            everyone = {**known, **{profile.profile_id: profile for profile in own}}
            found = find_used([used.profile for used in found], everyone.values(), data_dir)
        refused = {str(used.profile.profile_id): used.refused for used in found if used.refused}
        return cls([used for used in found if not used.refused], refused, found)

    def show(self) -> None:
        """Each directory, or why it cannot be adopted."""
        if not self.found:
            return
        several = len(self.found) != 1
        click.echo(f"{len(self.found):,} {'directories contain' if several else 'directory contains'} used profiles:")
        for used in self.found[:MAX_SHOWN]:
            version = f" (browser version {used.engine})" if used.engine else ""
            click.echo(f"  {used.profile.profile_id}  {used.directory}{version}")
            if used.refused:
                click.echo(f"    cannot be adopted: {used.refused}")
        if len(self.found) > MAX_SHOWN:
            click.echo(f"  … and {len(self.found) - MAX_SHOWN:,} more; --dry-run --json shows all")

    def agreed(self, *, adopt: bool, asking: bool) -> bool:
        """Whether to adopt those that can be adopted: by the option, or by the answer to one question."""
        if not self.ready or adopt or not asking:
            return bool(self.ready) and adopt
        what = "this profile" if len(self.ready) == 1 else f"these {len(self.ready):,} profiles"
        return click.confirm(f"adopt {what} with the sessions in them?")

    def adopt(self, store: str | None, actor: str) -> None:
        """Adopt those that can be, each with an event."""

        async def work(opened: "Store") -> None:
            from datetime import UTC, datetime

            from leasekeeper.browsers.adopting import NotAdopted, adopting
            from leasekeeper.core.events import adopted

            for used in self.ready:
                try:
                    with adopting(used):
                        event = adopted(used.profile, str(used.directory), used.engine, actor, datetime.now(UTC))
                        await opened.record(event)
                except (NotAdopted, OSError) as error:
                    self.refused[used.profile.profile_id] = str(error)
                else:
                    self.adopted.add(used.profile.profile_id)

        with_store(store, work)

    def document(self) -> list[dict[str, object]]:
        """For programs."""
        return [
            {
                "profile_id": used.profile.profile_id,
                "directory": str(used.directory),
                "engine": used.engine,
                "adopted": used.profile.profile_id in self.adopted,
                "refused": self.refused.get(used.profile.profile_id),
            }
            for used in self.found
        ]

    def conclude(self, file: str, *, wanted: bool, as_json: bool) -> None:
        """Print what was adopted and what was not. Raises PartlyDone if a requested adoption failed."""
        if self.adopted and not as_json:
            click.echo(f"adopted {_profiles(len(self.adopted))}")
        if self.refused and (wanted or self.adopted):
            lines = [f"  {profile_id}: {why}" for profile_id, why in list(self.refused.items())[:MAX_SHOWN]]
            many = f"{_profiles(len(self.refused))} could not be adopted"
            raise PartlyDone("\n".join([f"{many}; the fleet is in force, {len(self.adopted):,} adopted", *lines]))
        if self.ready and not self.adopted and not as_json:
            click.echo(
                "not adopted: the first run of each would find it used by hand (MANUAL_USE_DETECTED);\n"
                f"to adopt: leasekeeper apply {file} --adopt"
            )


def _profiles(number: int) -> str:
    return f"{number:,} profile{'' if number == 1 else 's'}"


async def _all_profiles(store: "Store") -> list["Profile"]:
    from leasekeeper.core.profiles import Profile
    from leasekeeper.lists import MAX_IN_PAGE

    found: list[Profile] = []
    after: str | None = None
    while True:
        page = await store.find(Profile, after=after, limit=MAX_IN_PAGE)
        found += page.items
        after = page.after
        if after is None:
            return found
