"""One direction of the debugging pipe: bytes from one descriptor to another, at most one piece held at a time.

Nothing new is read while something waits to be written, so a side that does not read stops the other side, never the
keeper, and memory stays bounded. Messages end with a NUL; a watcher sees only their beginnings and ends.
"""

import os
from collections.abc import Callable

PIECE = 256 * 1024
BEGINNING = 64 * 1024
ENDING = 128


class Flow:
    """Reads from `source`, shows it to `watch`, writes to `sink`."""

    def __init__(self, source: int, sink: int, watch: Callable[[bytes], None]) -> None:
        self.source = source
        self.sink = sink
        self.ended = False
        self.between_messages = True
        self.waiting = memoryview(b"")
        self._watch = watch

    def take(self) -> None:
        """Read one piece, if none waits. `ended` is set once the source has nothing more to give."""
        if self.waiting or self.ended:
            return
        try:
            piece = os.read(self.source, PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self.ended = True
            return
        self._watch(piece)
        self.waiting = memoryview(piece)

    def give(self) -> None:
        """Write as much of the piece as the sink takes. A sink that is gone swallows the rest."""
        if not self.waiting:
            return
        try:
            written = os.write(self.sink, self.waiting)
        except BlockingIOError:
            return
        except OSError:
            self.waiting = memoryview(b"")
            return
        self.between_messages = self.waiting[written - 1] == 0 if written else self.between_messages
        self.waiting = self.waiting[written:]

    def drop(self) -> None:
        """Forget what waits: it is not to be written any more."""
        self.waiting = memoryview(b"")


class Messages:
    """Cuts a stream into messages and hands each to `finish`: its first bytes (all, unless it is long) and its last."""

    def __init__(self, finish: Callable[[bytes, bytes], None]) -> None:
        self._finish = finish
        self._begin = bytearray()
        self._end = b""

    def feed(self, piece: bytes) -> None:
        """The next bytes of the stream."""
        start = 0
        while (end := piece.find(b"\0", start)) >= 0:
            self._add(piece, start, end)
            self._finish(bytes(self._begin), self._end)
            self._begin, self._end = bytearray(), b""
            start = end + 1
        self._add(piece, start, len(piece))

    def _add(self, piece: bytes, start: int, end: int) -> None:
        room = BEGINNING - len(self._begin)
        if room > 0:
            self._begin += piece[start : min(end, start + room)]
        last = piece[max(start, end - ENDING) : end]
        self._end = last if len(last) == ENDING else (self._end + last)[-ENDING:]
