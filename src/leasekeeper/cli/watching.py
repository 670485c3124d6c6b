"""`--watch`: a list that is shown again and again until somebody presses Ctrl-C.

On a terminal each answer takes the place of the one before. Elsewhere they follow one another.
"""

import sys
import time
from collections.abc import Callable

import click

HOME_AND_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def show_again_and_again(show: Callable[[], None], every: float) -> None:
    """Until Ctrl-C, or until it fails. Between two answers nothing is open."""
    while True:
        if sys.stdout.isatty():
            click.echo(HOME_AND_CLEAR, nl=False)
        show()
        sys.stdout.flush()
        time.sleep(every)
