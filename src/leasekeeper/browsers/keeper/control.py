"""The keeper's end of the line to its worker: JSON lines over a unix socket. Never waits for the worker."""

import os
import struct

from leasekeeper.browsers.keeper.orders import Orders, Refused
from leasekeeper.browsers.keeper.quick import from_json, sockets, to_json

MOST_UNREAD = 256 * 1024
_CREDENTIALS = struct.Struct("3i")


class Control:
    """Connected to the worker that gave the orders. Its end is the worker's end."""

    def __init__(self, orders: Orders) -> None:
        self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            self._socket.connect(b"\0" + orders.control.encode())
            self.worker = os.pidfd_open(orders.worker_pid)
        except OSError as error:
            raise Refused("LEASE_LOST", f"the worker (process {orders.worker_pid}) is gone: {error}") from None
        peer = self._socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(peer)[1] != os.geteuid():
            raise Refused("BAD_ORDERS", "the worker's socket belongs to another user")
        self._socket.setblocking(False)
        self.descriptor = self._socket.fileno()
        self._unread = b""
        self.say({"hello": orders.secret, "pid": os.getpid()})

    def say(self, message: dict[str, str | int | float]) -> None:
        """Tell the worker. A worker that is gone or does not read misses it: the report on disk is what counts."""
        try:
            self._socket.send(to_json(message) + b"\n", sockets.MSG_NOSIGNAL)
        except OSError:
            return

    def read(self) -> list[dict[str, object]] | None:
        """All that the worker has said since; None once it is gone, or talks nonsense."""
        messages: list[dict[str, object]] = []
        while True:
            try:
                chunk = self._socket.recv(65536)
            except BlockingIOError:
                return messages
            except OSError:
                return None
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            try:
                messages += [from_json(line) for line in lines]
            except ValueError:
                return None
            if not chunk or len(self._unread) > MOST_UNREAD:
                return None
