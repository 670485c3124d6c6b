"""Why a browser's use ended, as a report says it. It imports nothing of Leasekeeper, so `core.browsers.EndCause` is
repeated here: the causes that a keeper sees itself."""

CLOSED = "closed"
REVOKED = "revoked"
DEADLINE = "deadline"
WORKER_GONE = "worker_gone"
DRIVER_GONE = "driver_gone"
BROWSER_GONE = "browser_gone"
MESSAGE_TOO_LARGE = "message_too_large"
TERMINATED = "terminated"
