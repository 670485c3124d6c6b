"""The small program that Playwright is given as the browser: it starts the keeper and waits for it.

Playwright ends what it launched by SIGKILL to the whole process group, for instance as soon as a task whose lease is
lost closes its context. So what it launched is a shell of half a megabyte that only waits, while the keeper moves to a
session of its own and lives on to take the screenshot, close the browser and write the report.
"""

import shlex
import sys
from pathlib import Path

from leasekeeper.browsers.data_directory import place_program
from leasekeeper.errors import InputError

_PACKAGE = Path(__file__).resolve().parents[1]

# The shell closes Playwright's pipe: a second open end would hide from Playwright that the keeper closed it.
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
# The package stands in for its own __init__, which is for people's programs: loading it would cost each launch 8 ms.
_PROGRAM = (
    "import sys; sys.modules['leasekeeper'] = package = type(sys)('leasekeeper'); package.__path__ = [{package!r}]; "
    "from leasekeeper.browsers.keeper.main import main; main()"
)


def script(python: str, package: str) -> str:
    """The wrapper's text for this interpreter and this installation."""
    return _SCRIPT.format(python=shlex.quote(python), program=shlex.quote(_PROGRAM.format(package=package)))


def write_wrapper(data_dir: Path) -> Path:
    """Put `bin/keeper`, the program that Playwright starts as the browser, in place and return its path.

    Checked at each start: whoever replaces it runs anything. Raises InputError if it cannot be written.
    """
    try:
        return place_program(data_dir, "keeper", script(sys.executable, str(_PACKAGE)))
    except OSError as error:
        raise InputError(f"the data folder {data_dir} cannot be written to: {error.strerror}") from error
