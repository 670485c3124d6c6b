"""The keeper's connection to its worker: JSON lines over a unix socket. Sending and reading never block."""

import os
import select
import struct

from leasekeeper.browsers.keeper.fast_imports import from_json, sockets, to_json
from leasekeeper.browsers.keeper.orders import BAD_ORDERS, Orders, Refused
from leasekeeper.browsers.keeper.reasons import BROWSER_LAUNCH_FAILED, LEASE_LOST

MAX_UNREAD = 256 * 1024
_CREDENTIALS = struct.Struct("3i")


class Control:
    """The connection to the worker that wrote the orders. If it closes, the worker has ended. `worker` is a pidfd.

    Raises Refused: LEASE_LOST if the worker is gone, BROWSER_LAUNCH_FAILED if the system refused to connect.
    """

    def __init__(self, orders: Orders) -> None:
        self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            _connect(self._socket, orders)
            self.worker = _watch_process(orders.worker_pid)
        except Refused:
            self._socket.close()
            raise
        peer = self._socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(peer)[1] != os.geteuid():
            raise Refused(BAD_ORDERS, "the worker's socket belongs to another user")
        self._socket.setblocking(False)
        self.descriptor = self._socket.fileno()
        self._unread = b""
        self.send({"hello": orders.secret, "pid": os.getpid()})

    def send(self, message: dict[str, str | int | float]) -> None:
        """Send a message. It is lost if the worker has ended or does not read: only the report on disk is reliable."""
        try:
            self._socket.send(to_json(message) + b"\n", sockets.MSG_NOSIGNAL)
        except OSError:
            return

    def read(self) -> list[dict[str, object]] | None:
        """The worker's messages since the last call; None once the connection is closed or a message is invalid."""
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
            if not chunk or len(self._unread) > MAX_UNREAD:
                return None


def _connect(socket: "sockets.socket", orders: Orders) -> None:
    try:
        socket.connect(b"\0" + orders.control.encode())
    except ConnectionRefusedError as error:
        raise _gone(orders.worker_pid, error) from None
    except OSError as error:
        message = f"the keeper cannot connect to its worker (process {orders.worker_pid}): {error}"
        raise Refused(BROWSER_LAUNCH_FAILED, message) from None


def _watch_process(pid: int) -> int:
    """A descriptor that becomes readable when the process ends."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise _gone(pid, error) from None
    except OSError as error:
        message = f"the keeper cannot watch its worker (process {pid}), pidfd_open failed: {error}"
        raise Refused(BROWSER_LAUNCH_FAILED, message) from None


def _gone(pid: int, error: OSError) -> Refused:
    return Refused(LEASE_LOST, f"the worker (process {pid}) is gone: {error}")


def wait_readable(*descriptors: int, seconds: float) -> bool:
    """Wait until one of the descriptors is readable or closed; False after the timeout."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
