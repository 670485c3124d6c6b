"""The failure reasons that a keeper may report. The keeper imports nothing else of Leasekeeper, so these values of
`core.failures.Reason` are repeated here."""

BROWSER_LAUNCH_FAILED = "BROWSER_LAUNCH_FAILED"
LEASE_LOST = "LEASE_LOST"
PROFILE_IN_USE_ELSEWHERE = "PROFILE_IN_USE_ELSEWHERE"
LAUNCHER_UNAVAILABLE = "LAUNCHER_UNAVAILABLE"
