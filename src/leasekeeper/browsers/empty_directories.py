"""Detects a wrong data directory: several profiles in a row that had a session have an empty directory.

Without this check a wrong data directory, or a disk that is not mounted, would send every profile to review.
"""

from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.seal import fingerprint
from leasekeeper.errors import InputError

MAX_IN_A_ROW: Final = 2


class ProfilesMissing(InputError):
    """Too many profiles in a row had a session and have an empty directory.

    `check` raises it again as long as that is so. Call `cleared` for a profile that a person wants to begin anew.
    """

    def __init__(self, message: str, empty: "EmptyDirectories", data_dir: Path) -> None:
        super().__init__(message)
        self.profile_ids = empty.profile_ids
        self.cleared = empty.cleared
        self._empty = empty
        self._data_dir = data_dir

    def check(self) -> None:
        self._empty.check(self._data_dir)


class EmptyDirectories:
    """The empty directories that one worker found since it last opened a profile with its session."""

    def __init__(self) -> None:
        self._empty: dict[str, Path] = {}

    def met(self, profile_id: str, directory: Path) -> None:
        """This profile had a session, and its directory is empty."""
        self._empty[profile_id] = directory

    @property
    def profile_ids(self) -> tuple[str, ...]:
        return tuple(self._empty)

    def cleared(self, profile_id: str) -> None:
        """A person wants this one to begin with an empty directory."""
        self._empty.pop(profile_id, None)

    def session_found(self) -> None:
        """A profile's session was found, so the data directory is right: forget the empty ones."""
        self._empty.clear()

    def check(self, data_dir: Path) -> None:
        """Raise ProfilesMissing for too many, until one of them has a session or is cleared. Reads the disk."""
        if len(self._empty) < MAX_IN_A_ROW:
            return
        if any(fingerprint(str(directory)) for directory in self._empty.values()):
            self._empty.clear()
            return
        names = ", ".join(self._empty)
        raise ProfilesMissing(
            f"{len(self._empty)} profiles in a row ({names}) had a session and have an empty directory here, so no job "
            f"is taken. Profiles without user_data_dir are expected in {data_dir / 'profiles'}: is that the right "
            "data_dir, and is its disk mounted? Jobs are taken again when one of the directories is there; if they are "
            "to be new, clear the profiles",
            self,
            data_dir,
        )
