"""The orders file: which browser a keeper opens, under which lease, until when. Written by the worker."""

import os

from leasekeeper.browsers.keeper.fast_imports import from_json

ENV_NAME = "LEASEKEEPER_KEEPER"
VERSION = 1
MAX_BYTES = 64 * 1024
FROM_PLAYWRIGHT, TO_PLAYWRIGHT = 3, 4
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
LEASE_FIELDS = ("lease_id", "token", "run_id", "folder", "deadline", "kill_at")


# Refusals besides those in `reasons`. `keeper_reports` translates them to reasons of the failure table.
BAD_ORDERS = "BAD_ORDERS"
STALE_TOKEN = "STALE_TOKEN"  # noqa: S105 - the name of a refusal


class Refused(Exception):
    """The keeper starts no browser, or refuses a hand-over. `reason` is for programs, `message` for a person.

    `retry_after`: for how many seconds the launcher must not be called. `proof`: set if a launcher may have started a
    browser all the same; says what is known of its end.
    """

    def __init__(
        self, reason: str, message: str, retry_after: float = 0.0, proof: "dict[str, object] | None" = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.proof = proof


class Orders:
    """A browser's lease, and how the browser is opened. Times are seconds of CLOCK_BOOTTIME.

    After `deadline` no command of the worker reaches the browser; at `kill_at` the browser is dead. Renewals and warm
    hand-overs change the lease's fields, and nothing else changes. `launcher` is a launcher's description
    (`launcher_calls`); empty: the browser is a child process. A plain class: a dataclass would delay each launch.
    """

    def __init__(
        self,
        *,
        browser: str,
        user_data_dir: str,
        profile_id: str,
        lease_id: str,
        token: int,
        run_id: str,
        folder: str,
        deadline: float,
        kill_at: float,
        close_seconds: float = 5.0,
        interrupt_seconds: float = 5.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        worker_pid: int = 0,
        control: str = "",
        secret: str = "",
        launcher: "dict[str, object] | None" = None,
    ) -> None:
        self.browser = browser
        self.user_data_dir = user_data_dir
        self.profile_id = profile_id
        self.lease_id = lease_id
        self.token = token
        self.run_id = run_id
        self.folder = folder
        self.deadline = deadline
        self.kill_at = kill_at
        self.close_seconds = close_seconds
        self.interrupt_seconds = interrupt_seconds
        self.max_message_bytes = max_message_bytes
        self.worker_pid = worker_pid or os.getpid()
        self.control = control
        self.secret = secret
        self.launcher = launcher or {}

    def fields(self) -> dict[str, object]:
        """All fields by name, as in the orders file."""
        return dict(vars(self))

    def identity(self) -> dict[str, object]:
        """The fields that say whose browser it is, for a report."""
        names = ("profile_id", "run_id", "lease_id", "token")
        return {name: getattr(self, name) for name in names}

    def take_lease(self, found: dict[str, object]) -> None:
        """Continue under another lease. Raises Refused and changes nothing if a field is missing or wrong."""
        lease_id, run_id, folder = _text(found, "lease_id"), _text(found, "run_id"), _text(found, "folder")
        token, deadline, kill_at = _whole(found, "token"), _number(found, "deadline"), _number(found, "kill_at")
        self.lease_id, self.run_id, self.folder = lease_id, run_id, folder
        self.token, self.deadline, self.kill_at = token, deadline, kill_at

    def take_renewal(self, message: dict[str, object]) -> bool:
        """Take the new deadlines if this message is a renewal. Returns whether it is one."""
        deadline, kill_at = as_number(message.get("deadline")), as_number(message.get("kill_at"))
        if deadline is None or kill_at is None:
            return False
        self.deadline, self.kill_at = deadline, kill_at
        return True

    def expired(self, now: float) -> bool:
        """Whether no command may reach the browser any more."""
        return now >= min(self.deadline, self.kill_at)


def orders_of(found: dict[str, object]) -> Orders:
    """Orders from a file's fields. Raises Refused if a field is missing or wrong."""
    if found.get("version") != VERSION:
        raise Refused(BAD_ORDERS, f"orders of version {found.get('version')!r}, this keeper knows {VERSION}")
    return Orders(
        browser=_text(found, "browser"),
        user_data_dir=_text(found, "user_data_dir"),
        profile_id=_text(found, "profile_id"),
        lease_id=_text(found, "lease_id"),
        token=_whole(found, "token"),
        run_id=_text(found, "run_id"),
        folder=_text(found, "folder"),
        deadline=_number(found, "deadline"),
        kill_at=_number(found, "kill_at"),
        close_seconds=_number(found, "close_seconds"),
        interrupt_seconds=_number(found, "interrupt_seconds"),
        max_message_bytes=_whole(found, "max_message_bytes"),
        worker_pid=_whole(found, "worker_pid"),
        control=_text(found, "control"),
        secret=_text(found, "secret"),
        launcher=_launcher(found),
    )


def read_orders(path: str) -> Orders:
    """Read an orders file. Raises Refused if it is missing, another user's, or invalid."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if os.fstat(handle).st_uid != os.geteuid():
                raise Refused(BAD_ORDERS, f"{path} belongs to another user")
            found = from_json(file.read(MAX_BYTES))
    except (OSError, ValueError) as error:
        raise Refused(BAD_ORDERS, f"cannot read the orders in {path}: {error}") from None
    return orders_of(found)


def as_number(value: object) -> float | None:
    """The value as a float; None if it is not a number. `NaN` is refused: a deadline of `NaN` would never come."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return float(value)


def _text(found: dict[str, object], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(BAD_ORDERS, f"the orders lack {name}")
    return value


def _launcher(found: dict[str, object]) -> dict[str, object]:
    """The launcher's description; empty if the browser is a child process."""
    launcher = found.get("launcher", {})
    if not isinstance(launcher, dict):
        raise Refused(BAD_ORDERS, "the orders lack launcher")
    return launcher


def _number(found: dict[str, object], name: str) -> float:
    number = as_number(found.get(name))
    if number is None:
        raise Refused(BAD_ORDERS, f"the orders lack {name}")
    return number


def _whole(found: dict[str, object], name: str) -> int:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(BAD_ORDERS, f"the orders lack {name}")
    return value
