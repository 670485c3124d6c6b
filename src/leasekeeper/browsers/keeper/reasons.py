"""The reasons that a keeper may give. It imports nothing of Leasekeeper, so `core.failures.Reason` is repeated here."""

BROWSER_LAUNCH_FAILED = "BROWSER_LAUNCH_FAILED"
LEASE_LOST = "LEASE_LOST"
PROFILE_IN_USE_ELSEWHERE = "PROFILE_IN_USE_ELSEWHERE"
LAUNCHER_UNAVAILABLE = "LAUNCHER_UNAVAILABLE"
