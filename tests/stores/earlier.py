"""What stores of schema 1 owed to webhooks, and what is to become of it."""

OWED_BEFORE = [
    ("a", "https://Hook.Test/x?y=1", None),
    ("b", "http://[::1]:8080?y=/1", None),
    ("c", "https://hook.test#x", 7),
]
OWED_NOW = "SELECT delivery_id, host, state, attempted_at, answer, ended_at FROM {} ORDER BY delivery_id"
OWED_AFTER = [
    ("a", "hook.test", "pending", None, "", None),
    ("b", "[::1]:8080", "pending", None, "", None),
    ("c", "hook.test", "delivered", None, "", 7),
]
