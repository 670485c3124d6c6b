"""The store's scripts: files of Lua, run by their hash and sent again to a server that does not know them."""

from hashlib import sha1
from importlib import resources
from typing import Final


class Script:
    """One script."""

    def __init__(self, name: str) -> None:
        self.text = resources.files("leasekeeper.stores.redis").joinpath(f"{name}.lua").read_text(encoding="utf-8")
        self.hash = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


COMMIT: Final = Script("commit")
BAR: Final = Script("bar")
READY: Final = Script("ready")
DISTINCT: Final = Script("distinct")
GROUPS: Final = Script("groups")
MEET: Final = Script("meet")
VALID: Final = Script("valid")
ALL: Final = (COMMIT, BAR, READY, DISTINCT, GROUPS, MEET, VALID)
