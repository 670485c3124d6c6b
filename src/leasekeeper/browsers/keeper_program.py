"""The wrapper script that Playwright starts as the browser: it starts the keeper and waits for it.

Playwright kills the whole process group that it launched (SIGKILL), for instance as soon as a task that lost its lease
closes its context. So it launches a small shell that only waits. The keeper moves to a session of its own and survives:
it takes the screenshot, closes the browser and writes the report.
"""

import shlex
import sys
from pathlib import Path

from leasekeeper.browsers.data_directory import place_program
from leasekeeper.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]

# The shell closes its copy of Playwright's pipe. Otherwise Playwright would not notice that the keeper closed the pipe.
_SCRIPT = """\
#!/bin/sh
# Written by Leasekeeper at every start: Playwright runs this in place of the browser.
{python} -I -S -c {program} "$@" &
keeper=$!
exec 3<&- 4>&-
trap 'kill -TERM "$keeper" 2>/dev/null' HUP INT TERM
while wait "$keeper"; code=$?; kill -0 "$keeper" 2>/dev/null; do :; done
exit "$code"
"""
# An empty module replaces the package's own __init__, which the keeper does not need: it would cost each launch 8 ms.
_PROGRAM = (
    "import sys; sys.modules['leasekeeper'] = package = type(sys)('leasekeeper'); package.__path__ = [{package!r}]; "
    "from leasekeeper.browsers.keeper.main import main; main()"
)


def script(python: str, package: str) -> str:
    """The wrapper's text for this interpreter and this installation."""
    return _SCRIPT.format(python=shlex.quote(python), program=shlex.quote(_PROGRAM.format(package=package)))


def write_wrapper(data_dir: Path) -> Path:
    """Write `bin/keeper`, the program that Playwright starts as the browser, and return its path.

    Checked at each start: whoever can replace it can run any program. Raises InputError if it cannot be written.
    """
    try:
        return place_program(data_dir, "keeper", script(sys.executable, str(_PACKAGE)))
    except OSError as error:
        raise InputError(f"the data folder {data_dir} cannot be written to: {error.strerror}") from error
