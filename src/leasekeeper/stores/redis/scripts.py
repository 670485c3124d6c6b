"""The store's Lua scripts: loaded on each new connection, and run by their hash."""

import json
from collections.abc import Sequence
from hashlib import sha1
from importlib import resources
from typing import Any, Final

# Above so many arguments they are packed, which costs a fifth more, so many into each JSON array.
MANY: Final = 200_000
IN_ONE: Final = 10_000


class Script:
    """One script. With `of_many` its arguments may be packed: `arguments.lua` reads them."""

    def __init__(self, name: str, *, of_many: bool = False) -> None:
        self.text = "".join(map(_text, ["arguments", name] if of_many else [name]))
        self.hash = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        self._of_many = of_many

    def call(self, keys: Sequence[str], arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The command that runs it."""
        if self._of_many and len(arguments) > MANY:
            parts = [list(map(str, arguments[n : n + IN_ONE])) for n in range(0, len(arguments), IN_ONE)]
            arguments = ["packed", *[json.dumps(part, ensure_ascii=False) for part in parts]]
        return ("EVALSHA", self.hash, len(keys), *keys, *arguments)


def _text(name: str) -> str:
    return resources.files("leasekeeper.stores.redis").joinpath(f"{name}.lua").read_text(encoding="utf-8")


COMMIT: Final = Script("commit", of_many=True)
BAR: Final = Script("bar")
READY: Final = Script("ready")
DISTINCT: Final = Script("distinct")
GROUPS: Final = Script("groups")
MEET: Final = Script("meet")
VALID: Final = Script("valid")
ALL: Final = (COMMIT, BAR, READY, DISTINCT, GROUPS, MEET, VALID)
