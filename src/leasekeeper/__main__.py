"""The `leasekeeper` program, and `python -m leasekeeper`. Ctrl-C during the imports must not print a traceback, so that
comes first.
"""

from leasekeeper.interrupts import leave_at_once

TYPE_CHECKING = False  # see the package
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> "NoReturn":
    leave_at_once()
    from leasekeeper.cli import main as run

    run()


if __name__ == "__main__":
    main()
