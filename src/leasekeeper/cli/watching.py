"""`--watch`: a list that is refreshed until Ctrl-C.

On a terminal each output replaces the one before; elsewhere they follow one another.
"""

import sys
import time
from collections.abc import Callable

import click

HOME_AND_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def refresh_until_interrupted(show: Callable[[], None], every: float) -> None:
    """Repeat until Ctrl-C, or until it fails. Between two outputs no store is open."""
    while True:
        if sys.stdout.isatty():
            click.echo(HOME_AND_CLEAR, nl=False)
        show()
        sys.stdout.flush()
        time.sleep(every)
