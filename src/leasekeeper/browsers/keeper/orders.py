"""What a keeper is told before it starts: its orders file and the browser's command line, both checked here."""

import os

from leasekeeper.browsers.keeper.quick import from_json

ENV_NAME = "LEASEKEEPER_KEEPER"
VERSION = 1
MOST_BYTES = 64 * 1024
FROM_PLAYWRIGHT, TO_PLAYWRIGHT = 3, 4


class Refused(Exception):
    """There will be no browser. `reason` is for programs, `message` says to a person what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Orders:
    """The lease this browser is for. A warm hand-over and a renewed deadline change it; nothing else does."""

    def __init__(self, found: dict[str, object]) -> None:
        if found.get("version") != VERSION:
            raise Refused("BAD_ORDERS", f"orders of version {found.get('version')!r}, this keeper knows {VERSION}")
        self.browser = _text(found, "browser")
        self.user_data_dir = _text(found, "user_data_dir")
        self.profile_id = _text(found, "profile_id")
        self.control = _text(found, "control")
        self.secret = _text(found, "secret")
        self.worker_pid = _whole(found, "worker_pid")
        self.close_seconds = _number(found, "close_seconds")
        self.interrupt_seconds = _number(found, "interrupt_seconds")
        self.take_lease(found)

    def identity(self) -> dict[str, object]:
        """Whose browser it is, as a report says it."""
        names = ("profile_id", "run_id", "lease_id", "token")
        return {name: getattr(self, name) for name in names}

    def take_lease(self, found: dict[str, object]) -> None:
        """All or nothing: a lease that is not complete changes nothing."""
        lease_id, run_id, folder = _text(found, "lease_id"), _text(found, "run_id"), _text(found, "folder")
        token, deadline, kill_at = _whole(found, "token"), _number(found, "deadline"), _number(found, "kill_at")
        self.lease_id, self.run_id, self.folder = lease_id, run_id, folder
        self.token, self.deadline, self.kill_at = token, deadline, kill_at


def read_orders(path: str) -> Orders:
    """The orders that this path holds. Raises Refused if they are not there, not ours to read, or not understood."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if os.fstat(handle).st_uid != os.geteuid():
                raise Refused("BAD_ORDERS", f"{path} belongs to another user")
            found = from_json(file.read(MOST_BYTES))
    except (OSError, ValueError) as error:
        raise Refused("BAD_ORDERS", f"cannot read the orders in {path}: {error}") from None
    return Orders(found)


def check_arguments(arguments: list[str], user_data_dir: str) -> None:
    """Refuse a command line for another directory, or one that would open a way around the fence."""
    directories = [value_of(argument) for argument in arguments if argument.startswith(DIRECTORY_FLAG)]
    if len(directories) != 1 or os.path.realpath(directories[0]) != os.path.realpath(user_data_dir):
        raise Refused("BAD_ORDERS", f"the browser was to be started on {directories}, the orders say {user_data_dir}")
    if any(is_flag(argument, "--remote-debugging-port") for argument in arguments):
        raise Refused("BAD_ORDERS", "--remote-debugging-port would open a way around the lease: leave it out")
    if not any(is_flag(argument, "--remote-debugging-pipe") for argument in arguments):
        raise Refused(
            "BAD_ORDERS", "--remote-debugging-pipe is missing: a keeper is launched by Playwright, not by hand"
        )


DIRECTORY_FLAG = "--user-data-dir="


def value_of(argument: str) -> str:
    return argument.partition("=")[2]


def is_flag(argument: str, name: str) -> bool:
    return argument == name or argument.startswith(name + "=")


def _text(found: dict[str, object], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise Refused("BAD_ORDERS", f"the orders lack {name}")
    return value


def as_number(value: object) -> float | None:
    """A number that can be compared: `NaN` is later than nothing, so as a deadline it would never come."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return float(value)


def _number(found: dict[str, object], name: str) -> float:
    value = found.get(name)
    number = as_number(value)
    if number is None:
        raise Refused("BAD_ORDERS", f"the orders lack {name}")
    return number


def _whole(found: dict[str, object], name: str) -> int:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused("BAD_ORDERS", f"the orders lack {name}")
    return value
