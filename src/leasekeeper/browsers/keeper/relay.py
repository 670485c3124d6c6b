"""One direction of the DevTools traffic: bytes from one channel to another, at most one piece held at a time.

Nothing new is read while something waits to be written, so a side that does not read stops the other side, never the
keeper, and memory stays bounded. Messages end with a NUL; a watcher sees only their beginnings, ends and sizes.
"""

from collections.abc import Callable

from leasekeeper.browsers.keeper.reached import Channel

BEGINNING = 64 * 1024
ENDING = 128


class Flow:
    """Reads from `source`, shows it to `watch`, writes to `sink`. `taken` counts the bytes.

    `gate` says what of it may go on at all. `share` takes out what is for others than the sink; then `room` bytes may
    wait here, so that a sink that does not read delays the others later.
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
        """Whether nothing more is read now."""
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
        """Write as much of the piece as the sink takes. A sink that is gone swallows the rest."""
        if not self.waiting:
            return
        written = self.sink.write(self.waiting)
        if written < 0:
            self.drop()
            return
        self.between_messages = self.waiting[written - 1] == 0 if written else self.between_messages
        self.waiting = self.waiting[written:]

    def put(self, piece: bytes) -> None:
        """Let this go on after what waits. It was held back before."""
        self._watch(piece)
        self.waiting = memoryview(bytes(self.waiting) + piece)

    def drop(self) -> None:
        """Forget what waits: it is not to be written any more."""
        self.waiting = memoryview(b"")


class Messages:
    """Cuts a stream into messages and hands each to `finish`: its first bytes (all, unless it is long) and its last.

    `size` is that of the message under way, `largest` that of the largest message so far.
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
        """The message under way will come again, as a whole."""
        self._begin, self._end, self.size = bytearray(), b"", 0

    def _add(self, piece: bytes, start: int, end: int) -> None:
        self.size += end - start
        self.largest = max(self.largest, self.size)
        room = BEGINNING - len(self._begin)
        if room > 0:
            self._begin += piece[start : min(end, start + room)]
        last = piece[max(start, end - ENDING) : end]
        self._end = last if len(last) == ENDING else (self._end + last)[-ENDING:]
