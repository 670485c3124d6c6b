"""Relays one direction of the DevTools traffic: bytes from one channel to another, one piece at a time.

Nothing is read while something waits to be written. So a side that does not read stops the other side, but never the
keeper, and memory stays bounded. Messages end with a NUL; the watcher gets only their beginnings, ends and sizes.
"""

from collections.abc import Callable

from leasekeeper.browsers.keeper.reached import Channel

BEGINNING = 64 * 1024
ENDING = 128


class Flow:
    """Reads from `source`, passes the bytes to `watch`, writes them to `sink`. `taken` counts the bytes read.

    `gate` returns the part of a piece that may pass. `share` returns the part that is for the sink, after it has
    delivered the rest to others; then `room` bytes may wait here, so that a slow sink delays the others later.
    """

    def __init__(self, source: Channel, sink: Channel, watch: Callable[[bytes], None]) -> None:
        self.source = source
        self.sink = sink
        self.ended = False
        self.taken = 0
        self.between_messages = True
        self.waiting = memoryview(b"")
        self.room = 0
        self.gate: Callable[[bytes], bytes] | None = None
        self.share: Callable[[bytes], bytes] | None = None
        self._watch = watch

    @property
    def full(self) -> bool:
        """Whether too much waits to read more now."""
        return len(self.waiting) > self.room

    def take(self) -> None:
        """Read one piece, if there is room. `ended` is set once the source has nothing more to give."""
        if self.full or self.ended:
            return
        piece = self.source.read()
        if piece is None:
            return
        if not piece:
            self.ended = True
            return
        self.taken += len(piece)
        if self.gate is not None:
            piece = self.gate(piece)
            if not piece:
                return
        self._watch(piece)
        if self.share is not None:
            piece = bytes(self.waiting) + self.share(piece)
        self.waiting = memoryview(piece)

    def give(self) -> None:
        """Write as much as the sink takes without waiting. If the sink is gone, the rest is dropped."""
        if not self.waiting:
            return
        written = self.sink.write(self.waiting)
        if written < 0:
            self.drop()
            return
        self.between_messages = self.waiting[written - 1] == 0 if written else self.between_messages
        self.waiting = self.waiting[written:]

    def put(self, piece: bytes) -> None:
        """Queue bytes that the gate kept back, after those that wait."""
        self._watch(piece)
        self.waiting = memoryview(bytes(self.waiting) + piece)

    def drop(self) -> None:
        """Drop the bytes that wait: they are never written."""
        self.waiting = memoryview(b"")


class Messages:
    """Splits a stream into messages. Calls `finish` for each with its first bytes (all, unless long) and its last.

    `size` is the size of the unfinished message so far, `largest` that of the largest message.
    """

    def __init__(self, finish: Callable[[bytes, bytes], None]) -> None:
        self._finish = finish
        self._begin = bytearray()
        self._end = b""
        self.size = 0
        self.largest = 0

    def feed(self, piece: bytes) -> None:
        """The next bytes of the stream."""
        start = 0
        while (end := piece.find(b"\0", start)) >= 0:
            self._add(piece, start, end)
            self._finish(bytes(self._begin), self._end)
            self._begin, self._end, self.size = bytearray(), b"", 0
            start = end + 1
        self._add(piece, start, len(piece))

    def forget(self) -> None:
        """Drop the unfinished message: it will come again, as a whole."""
        self._begin, self._end, self.size = bytearray(), b"", 0

    def _add(self, piece: bytes, start: int, end: int) -> None:
        self.size += end - start
        self.largest = max(self.largest, self.size)
        room = BEGINNING - len(self._begin)
        if room > 0:
            self._begin += piece[start : min(end, start + room)]
        last = piece[max(start, end - ENDING) : end]
        self._end = last if len(last) == ENDING else (self._end + last)[-ENDING:]
