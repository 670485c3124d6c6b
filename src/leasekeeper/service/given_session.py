"""An open session of a server, by its URL: for a program that uses it from any machine. The server runs the browser, so
its end is requested, and its state read, over the API.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import httpx2

from leasekeeper.config import Config
from leasekeeper.errors import InputError, LeasekeeperError, Problem, SessionEnded, StoreUnavailable
from leasekeeper.runtime.session_host import ended
from leasekeeper.server_trust import authorization, trusted
from leasekeeper.wire import error_from_json

SECONDS: Final = 120.0
POLL_SECONDS: Final = 1.0
_PATH: Final = re.compile(r"(.*)/v1/sessions/([^/]+)/cdp")


class GivenSession:
    """A session that another program opened. `url` is its `cdp_url`, which contains the session's id and token."""

    def __init__(self, url: str, config: Config) -> None:
        parts = urlsplit(url)
        found = _PATH.fullmatch(parts.path)
        token = parse_qs(parts.query).get("token", [""])[0]
        if parts.scheme not in ("ws", "wss") or found is None or not token:
            wrong = "must be the whole cdp_url of an open session: ws://…/v1/sessions/…/cdp?token=…"
            raise InputError("nothing was started", [Problem("session", wrong)])
        server = f"{'https' if parts.scheme == 'wss' else 'http'}://{parts.netloc}{found[1]}"
        self.session_id = found[2]
        self._url = url
        self._server = server
        self._over: Mapping[str, Any] | None = None
        self._api = httpx2.AsyncClient(
            base_url=server, headers=authorization(token), timeout=SECONDS, verify=trusted(server, config.store_ca)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.aclose()

    async def environment(self) -> Mapping[str, str]:
        """The environment variables of a program that uses it. Raises SessionEnded once it is over."""
        seen = await self._call("GET", "")
        if seen["state"] != "open":
            raise self._ended(seen)
        return {
            "LEASEKEEPER_CDP_URL": self._url,
            "LEASEKEEPER_PROFILE_ID": str(seen["profile_id"]),
            "LEASEKEEPER_RUN_ID": self.session_id,
            "LEASEKEEPER_FENCING_TOKEN": str(seen["fencing_token"]),
        }

    async def taken_away(self) -> bool:
        """Wait until it is over. True unless the program itself closed the browser, or it was released as completed."""
        while True:
            try:
                seen = await self._call("GET", "")
            except SessionEnded as error:
                seen = {"state": "ended", "reason": error.reason or error.code, "message": error.message}
            except LeasekeeperError:
                seen = {}  # the server, or the browser's worker, is temporarily unavailable
            if seen.get("state") == "ended":
                self._over = seen
                return seen["reason"] is not None
            await asyncio.sleep(POLL_SECONDS)

    async def release(self, reason: str | None, message: str) -> Mapping[str, Any]:
        """End it, and return how it ended. Raises SessionEnded if it was taken away."""
        if self._over is None:
            body = {"reason": reason, "message": message} if reason else {}
            return await self._call("POST", "/release", body)
        if self._over["reason"] is not None:
            raise self._ended(self._over)
        return self._over

    def _ended(self, seen: Mapping[str, Any]) -> SessionEnded:
        why = ": ".join(str(each) for each in (seen["reason"], seen["message"]) if each)
        return ended(self.session_id, why or "released", reason=seen["reason"], profile_id=seen.get("profile_id"))

    async def _call(self, method: str, what: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        try:
            answer = await self._api.request(method, f"/v1/sessions/{self.session_id}{what}", json=body)
            found: dict[str, Any] = answer.json()
        except (httpx2.TransportError, ValueError) as error:
            raise StoreUnavailable(f"no server answers at {self._server} ({error})") from None
        if answer.status_code >= 400:
            raise error_from_json({**found, "message": found.get("detail", "")})
        return found
