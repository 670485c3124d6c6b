"""The holder's own clock. It is the keeper's: deadlines are compared in both processes."""

from leasekeeper.browsers.keeper.clock import boot_time

__all__ = ["boot_time"]
