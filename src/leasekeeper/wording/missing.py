"""The error for a program that asks for a profile that its store does not have: which store that is, and what to check.

A script that runs elsewhere, for example from cron, may use another store than its author expects: an empty one.
"""


def no_profile_text(profile_id: str, store_url: str) -> str:
    """The message of `NotFound` for a direct lease. Of a store's URL only an SQLite file's path is shown."""
    scheme, _, path = store_url.partition("///")
    place = f"the store {path}" if scheme == "sqlite:" else "the store"
    return (
        f"there is no profile {profile_id} in {place}: declare it in fleet.yaml and apply that; if you did, this "
        "program uses another store: set LEASEKEEPER_STORE, or start it where leasekeeper.toml is"
    )
