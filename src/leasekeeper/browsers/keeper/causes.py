"""The causes of an end that a keeper may report. The keeper imports nothing else of Leasekeeper, so these values of
`core.browsers.EndCause` are repeated here."""

CLOSED = "closed"
REVOKED = "revoked"
DEADLINE = "deadline"
WORKER_GONE = "worker_gone"
DRIVER_GONE = "driver_gone"
BROWSER_GONE = "browser_gone"
MESSAGE_TOO_LARGE = "message_too_large"
TERMINATED = "terminated"
