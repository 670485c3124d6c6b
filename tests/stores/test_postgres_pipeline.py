"""The wire to PostgreSQL at its odd moments, which a real server shows once in a thousand busy hours."""

import select
import socket
import threading
from typing import Any

from leasekeeper.stores.postgres.pipeline import Link


class Eager:
    """libpq when its buffer was full: the read that follows sends the rest, and takes in the whole answer with it."""

    def __init__(self, wire: socket.socket) -> None:
        self.socket = wire.fileno()
        self.answered = False

    def is_busy(self) -> int:
        return not self.answered

    def flush(self) -> int:
        return not self.answered

    def consume_input(self) -> None:
        self.answered = True

    def get_result(self) -> str:
        return "the answer"


def test_an_answer_that_came_in_while_the_rest_went_out_is_not_waited_for() -> None:
    """The wire is quiet from then on: whoever waits for it waits for ever."""
    here, there = socket.socketpair()
    with here, there:
        link: Any = object.__new__(Link)
        link._pg = Eager(here)
        link._poll = select.poll()
        link._poll.register(here, select.POLLIN)
        link._timeout_ms = None
        answers: list[object] = []
        reader = threading.Thread(target=lambda: answers.append(link._next_result()), daemon=True)
        reader.start()
        reader.join(60)
        assert answers == ["the answer"]
