"""Calls a launcher's HTTP API. A description, plain data, says which request starts, stops or inspects a profile, where
the answer has the endpoint, and which answers mean busy, running or failed.

Used by the keeper (start, stop, inspect) and by the worker (inspect, inventory). Standard library only. Knows no
vendor: their descriptions are in `launchers`, and come with the keeper's orders.
"""

import http.client
import json
import re
import ssl
import time
from urllib.parse import quote, urlencode, urlsplit

MAX_ANSWER = 16 * 1024 * 1024
MAX_MESSAGE = 300
MIN_SECRET = 8
REDACTED = "[redacted]"
DEFAULT_SECONDS = 15.0
STATUS = "http.status"
TOO_MANY = 429
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.]*)\}")

Description = dict[str, object]


class CallFailed(Exception):
    """A call without a usable answer. `sent`: the launcher may have executed it all the same."""

    def __init__(
        self, message: str, *, sent: bool, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.sent = sent
        self.status = status
        self.retry_after = retry_after

    @property
    def rate_limited(self) -> bool:
        """Whether the launcher refused because of too many calls or too many browsers."""
        return self.status == TOO_MANY

    @property
    def unauthorized(self) -> bool:
        """Whether the launcher does not accept the token: no call with it will work."""
        return self.status == 401

    @property
    def server_failed(self) -> bool:
        """Whether the answer was a server error (5xx), of the launcher or of a gateway before it."""
        return self.status is not None and self.status >= 500


class Answer:
    """A launcher's answer: HTTP status and JSON body."""

    def __init__(self, status: int, body: object) -> None:
        self.status = status
        self.body = body

    def at(self, path: str) -> object:
        """The value at a path like `data.ws.puppeteer`; None if there is none."""
        if path == STATUS:
            return self.status
        found = self.body
        for name in path.split("."):
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found

    def matches(self, conditions: object, values: dict[str, object]) -> bool:
        """Whether one of the conditions holds. A condition is a set of `path: value`, all of which must match.

        The value `~text` matches what contains the text; `!~text` an object or a list that does not contain it.
        """
        alternatives = conditions if isinstance(conditions, list) else [conditions] if conditions else []
        return any(
            isinstance(each, dict)
            and each
            and all(_fits(self.at(path), fill(wanted, values)) for path, wanted in each.items())
            for each in alternatives
        )

    def text(self, secrets: "tuple[str, ...]" = ()) -> str:
        """The answer's message for a person, without `secrets`: some launchers repeat what they were sent."""
        for path in (
            "status.message",
            "msg",
            "message",
            "error.message",
            "errorObject.text",
            "error",
            "detail",
            "title",
        ):
            found = self.at(path)
            if isinstance(found, str) and found:
                for secret in secrets:
                    found = found.replace(secret, REDACTED)
                return found[:MAX_MESSAGE]
        return f"HTTP {self.status}"


class LauncherCalls:
    """The calls for one profile of one launcher. `description` as in the keeper's orders."""

    def __init__(self, description: Description) -> None:
        self._url = str(description["url"])
        self.values = _mapping(description.get("values"))
        self._headers = self._filled(description.get("headers"))
        self._limited = description.get("limited")
        self._steps = {
            name: _mapping(description.get(name)) for name in ("start", "stop", "status", "list", "plan", "users")
        }

    def _filled(self, headers: object) -> dict[str, str]:
        return {name: _plain(fill(value, self.values)) for name, value in _mapping(headers).items()}

    def has(self, step: str) -> bool:
        """Whether the launcher has such a call."""
        return bool(self._steps[step])

    def running(self, seconds: float = DEFAULT_SECONDS) -> bool | None:
        """Whether the launcher says that the profile runs; None if it has no such call.

        Raises CallFailed, also for an answer that says neither: an unknown state is not idle.
        """
        if not self.has("status"):
            return None
        answer = self.call("status", seconds)
        if answer.matches(self._steps["status"].get("running"), self.values):
            return True
        if answer.matches(self._steps["status"].get("idle"), self.values):
            return False
        self._check("status", answer)
        raise CallFailed("status: the launcher says neither that the profile runs nor that it is idle", sent=True)

    def start(self, seconds: float) -> tuple[str, bool]:
        """Start the profile. Returns its endpoint and False, or an empty text and True if it runs already (busy).

        Raises CallFailed.
        """
        answer = self.call("start", seconds)
        step = self._steps["start"]
        if answer.matches(step.get("busy"), self.values):
            return "", True
        self._check("start", answer)
        endpoint = fill(str(step.get("endpoint", "")), _Found(self.values, answer))
        if not isinstance(endpoint, str) or "://" not in endpoint:
            raise CallFailed(f"the answer to start has no endpoint at {step.get('endpoint')}", sent=True)
        return endpoint, False

    def stop(self, seconds: float = DEFAULT_SECONDS) -> None:
        """Stop the profile. One that does not run counts as stopped. Raises CallFailed."""
        answer = self.call("stop", seconds)
        if not answer.matches(self._steps["stop"].get("idle"), self.values):
            self._check("stop", answer)

    def users(self, seconds: float = DEFAULT_SECONDS) -> list[str]:
        """Who has the profile open, on any machine: names from the launcher. Raises CallFailed."""
        answer, step = self.call("users", seconds), self._steps["users"]
        self._check("users", answer)
        items = answer.at(str(step.get("items", "")))
        names = (
            [item.get(str(step.get("user", ""))) for item in items if isinstance(item, dict)]
            if isinstance(items, list)
            else []
        )
        return [str(name) for name in names if name]

    def plan(self, seconds: float = DEFAULT_SECONDS) -> int | None:
        """How many profiles the plan lets run at once; None if it sets no limit. Raises CallFailed."""
        answer = self.call("plan", seconds)
        self._check("plan", answer)
        found = answer.at(str(self._steps["plan"].get("cap", "")))
        return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None

    def _check(self, name: str, answer: Answer) -> None:
        wanted = self._steps[name].get("ok")
        fine = answer.matches(wanted, self.values) if wanted else 200 <= answer.status < 300
        if not fine:
            raise CallFailed(f"{name} was refused: {self._text(answer)}", sent=False, status=answer.status)

    def _text(self, answer: Answer) -> str:
        return answer.text(self._secrets)

    def without_secrets(self, text: str) -> str:
        """The text without the token and without other values of the headers."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    @property
    def _secrets(self) -> tuple[str, ...]:
        # A header is a scheme and a token, or only a token. In an address the token is quoted.
        token = str(self.values.get("token") or "")
        words = [token, quote(token, safe=""), *(word for value in self._headers.values() for word in value.split())]
        return tuple(word for word in words if len(word) >= MIN_SECRET)

    def call(self, name: str, seconds: float, more: dict[str, object] | None = None) -> Answer:
        """Send one request and return the answer. `more` adds values for placeholders. Raises CallFailed."""
        step, values = self._steps[name], {**self.values, **(more or {})}
        parts = urlsplit(str(fill(str(step.get("url") or self._url), values)))
        path = parts.path.rstrip("/") + fill_quoted(str(step["path"]), values)
        query = {key: _plain(fill(value, values)) for key, value in _mapping(step.get("query")).items()}
        body = None if "body" not in step else json.dumps(fill(step["body"], values)).encode()
        headers = {"Accept": "application/json", **self._headers, **self._filled(step.get("headers"))}
        if body is not None:
            headers["Content-Type"] = "application/json"
        target = path + ("?" + urlencode(query) if query else "")
        method = str(step.get("method") or ("GET" if body is None else "POST"))
        answer = _request(parts.scheme, parts.hostname or "", parts.port, method, target, body, headers, seconds)
        if answer.matches(self._limited, values):
            raise CallFailed(f"{name}: not now, says the launcher: {self._text(answer)}", sent=False, status=TOO_MANY)
        return answer


def _request(
    scheme: str, host: str, port: int | None, method: str, target: str, body: bytes | None, headers: dict[str, str],
    seconds: float,
) -> Answer:  # fmt: skip
    until = time.monotonic() + seconds
    connection: http.client.HTTPConnection
    if scheme == "https":
        connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
    else:
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
    sent = False
    place = f"{scheme}://{host}{f':{port}' if port else ''}"
    try:
        connection.connect()
        sent = True
        connection.request(method, target, body, headers)
        data = bytearray()
        with connection.getresponse() as response:
            while chunk := response.read1(65536):
                data += chunk
                if len(data) > MAX_ANSWER:
                    raise CallFailed(f"{place} answered with more than {MAX_ANSWER // 1024**2} MiB", sent=True)
                if time.monotonic() > until:
                    raise TimeoutError
    except TimeoutError:
        raise CallFailed(f"no response from {place} within {seconds:g} s", sent=sent) from None
    except (OSError, http.client.HTTPException) as error:
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CallFailed(f"no response from {place}: {what}", sent=sent) from None
    except ValueError:  # its text is not shown: it has the header, which may be the token
        raise CallFailed(f"the call to {place} cannot be sent: a header or the path is invalid", sent=False) from None
    finally:
        connection.close()
    if response.status == TOO_MANY:
        wait = _seconds(response)
        raise CallFailed(f"{place} says: too many requests", sent=False, status=TOO_MANY, retry_after=wait)
    try:
        return Answer(response.status, json.loads(data) if data.strip() else {})
    except (ValueError, RecursionError):
        raise CallFailed(
            f"the answer of {place} is not JSON (HTTP {response.status})", sent=True, status=response.status
        ) from None


class _Found(dict[str, object]):
    """The values; for other names, the value at that path of an answer."""

    def __init__(self, values: dict[str, object], answer: Answer) -> None:
        super().__init__(values)
        self._answer = answer

    def __missing__(self, name: str) -> object:
        return self._answer.at(name)


def fill(template: object, values: dict[str, object]) -> object:
    """The template with its `{names}` replaced. A text that is only one name becomes the value itself."""
    if isinstance(template, dict):
        return {key: fill(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [fill(value, values) for value in template]
    if not isinstance(template, str):
        return template
    whole = _PLACEHOLDER.fullmatch(template)
    if whole:
        return _value(values, whole[1])
    return _PLACEHOLDER.sub(lambda found: _plain(_value(values, found[1])), template)


def _value(values: dict[str, object], name: str) -> object:
    try:
        return values[name]
    except KeyError:
        return ""


def fill_quoted(template: str, values: dict[str, object]) -> str:
    """The template, part of an address, with its `{names}` replaced by quoted values."""
    return _PLACEHOLDER.sub(lambda found: quote(_plain(_value(values, found[1])), safe=""), template)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _fits(found: object, wanted: object) -> bool:
    if isinstance(wanted, str) and wanted.startswith("!~"):
        return isinstance(found, dict | list) and not _fits(found, wanted[1:])
    if isinstance(wanted, str) and wanted.startswith("~"):
        return found is not None and wanted[1:].lower() in json.dumps(found, ensure_ascii=False).lower()
    if isinstance(wanted, list):
        return any(_fits(found, each) for each in wanted)
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


def _mapping(found: object) -> dict[str, object]:
    return dict(found) if isinstance(found, dict) else {}


def _seconds(response: http.client.HTTPResponse) -> float | None:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None
