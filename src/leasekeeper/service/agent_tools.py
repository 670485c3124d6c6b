"""The tools of agents, as a table: each is one call of the HTTP API, with the agent's own token. Knows no protocol.

There are no tools that click: Playwright MCP on a session's `cdp_url` does that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Final, Protocol
from urllib.parse import quote

from leasekeeper.core.profiles import ProfileState
from leasekeeper.errors import InputError, Problem


class Api(Protocol):
    """The HTTP API, as one caller: status and JSON of the answer."""

    async def call(
        self, method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any] | None
    ) -> tuple[int, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTool:
    """One tool. `paths`: the first whose names are all among the arguments is called, with the others as body."""

    name: str
    doc: str
    method: str
    paths: tuple[str, ...]
    arguments: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()
    # Added to the agent's arguments.
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        return {
            "type": "object",
            "properties": dict(self.arguments),
            "required": list(self.required),
            "additionalProperties": False,
        }

    @property
    def reads(self) -> bool:
        return self.method == "GET"


def _text(doc: str) -> dict[str, Any]:
    return {"type": "string", "description": doc}


def _seconds(doc: str, minimum: float = 0) -> dict[str, Any]:
    return {"type": "number", "minimum": minimum, "description": doc}


_SESSION: Final = {"session_id": _text("The session's id, as open_session gave it.")}
_MESSAGE: Final = {"message": _text("What happened, for people.")}

TOOLS: Final = (
    AgentTool(
        name="find_profiles",
        doc="List browser profiles with their state, account and holder.",
        method="GET",
        paths=("/v1/profiles",),
        arguments={
            "state": {"type": "string", "enum": list(ProfileState), "description": "Only those in this state."},
            "account_id": _text("Only those of this account."),
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "description": "Maximum number of profiles."},
        },
    ),
    AgentTool(
        name="why",
        doc="Why a profile is not available or a job does not run, what happens next, what a person can do.",
        method="GET",
        paths=("/v1/jobs/{job_id}/why", "/v1/profiles/{profile_id}/why"),
        arguments={"profile_id": _text("The profile."), "job_id": _text("Or the job.")},
    ),
    AgentTool(
        name="open_session",
        doc="Lease a profile and open its logged-in browser. Connect a browser tool (Playwright MCP --cdp-endpoint) to "
        "the cdp_url of the answer; keep that address secret. Release the session when you are done: an abandoned one "
        "ends after its idle time.",
        method="POST",
        paths=("/v1/sessions",),
        arguments={
            "profile_id": _text("The profile."),
            "account_id": _text("Or the account, if it has one profile."),
            "pool": _text("Or any free profile of this pool."),
            "wait_s": _seconds("How long to wait while the profile is in use; 0: answer at once who uses it."),
            "idle_timeout_s": _seconds("End after this time without a client; 300 if not given."),
            "max_duration_s": _seconds("End after this time in any case."),
        },
    ),
    AgentTool(
        name="session_status",
        doc="Whether a session is open, closing or ended, and how it ended.",
        method="GET",
        paths=("/v1/sessions/{session_id}",),
        arguments=_SESSION,
        required=("session_id",),
    ),
    AgentTool(
        name="checkpoint",
        doc="Record a safe step: from here the work could be repeated. Cookies are written to disk.",
        method="POST",
        paths=("/v1/sessions/{session_id}/checkpoint",),
        arguments={**_SESSION, "step": _text("A short name of the step.")},
        required=("session_id", "step"),
    ),
    AgentTool(
        name="begin_mutation",
        doc="Declare that what follows cannot be undone (submitting an order). Call end_mutation right after it.",
        method="POST",
        paths=("/v1/sessions/{session_id}/mutating",),
        arguments={**_SESSION, "name": _text("A short name of the section.")},
        required=("session_id", "name"),
        fixed={"action": "enter"},
    ),
    AgentTool(
        name="end_mutation",
        doc="Declare that what could not be undone is done.",
        method="POST",
        paths=("/v1/sessions/{session_id}/mutating",),
        arguments={**_SESSION, "name": _text("The name that begin_mutation got.")},
        required=("session_id", "name"),
        fixed={"action": "leave"},
    ),
    AgentTool(
        name="request_human",
        doc="Ask a person to do something in the browser, and wait up to 50 s for the answer; the session stays open. "
        "If state is waiting, do not touch the browser and call this again without a message. Otherwise do what next "
        "says: after a person worked in the browser, connect to the cdp_url of the answer and use its session_id.",
        method="POST",
        paths=("/v1/sessions/{session_id}/request-human",),
        arguments={
            **_SESSION,
            "message": _text("What the person should do. Leave it out to wait for the answer."),
            "timeout_s": _seconds("Stop asking after this time; 3600 if not given.", 1),
        },
        required=("session_id",),
        fixed={"wait_s": 50},
    ),
    AgentTool(
        name="release",
        doc="End a session: its browser is closed cleanly, evidence is saved, the profile is released.",
        method="POST",
        paths=("/v1/sessions/{session_id}/release",),
        arguments={
            **_SESSION,
            **_MESSAGE,
            "reason": _text("A failure's code (LOGIN_REQUIRED, SECURITY_PROMPT …) if the work was not completed."),
            "output": {"type": "object", "description": "The result, if it was."},
        },
        required=("session_id",),
    ),
    AgentTool(
        name="submit_job",
        doc="Submit a job for the workers. With idempotency_key, submitting it again gives the first job back.",
        method="POST",
        paths=("/v1/jobs",),
        arguments={
            "task": _text("The task's name."),
            "account_id": _text("The account."),
            "profile_id": _text("Or the profile."),
            "payload": {"type": "object", "description": "What the task needs."},
            "idempotency_key": _text("A key of your own for this job."),
        },
        required=("task",),
    ),
    AgentTool(
        name="job_status",
        doc="One job: its state, attempts and result.",
        method="GET",
        paths=("/v1/jobs/{job_id}",),
        arguments={"job_id": _text("The job's id.")},
        required=("job_id",),
    ),
)
BY_NAME: Final = {tool.name: tool for tool in TOOLS}


async def use(api: Api, name: str, given: Mapping[str, Any]) -> tuple[bool, Any]:
    """Call a tool: whether it succeeded, and the answer or the problem. Raises InputError for a wrong call."""
    tool = BY_NAME.get(name)
    if tool is None:
        raise InputError(f"there is no tool {name}; there are: {', '.join(BY_NAME)}")
    unknown, missing = given.keys() - tool.arguments.keys(), [each for each in tool.required if each not in given]
    if unknown or missing:
        problems = [Problem(each, "no such argument") for each in sorted(unknown)]
        raise InputError(f"{name} was not called", [*problems, *(Problem(each, "is required") for each in missing)])
    rest = {key: value for key, value in given.items() if value is not None}
    for path in tool.paths:
        names = [found for _, found, _, _ in Formatter().parse(path) if found]
        if all(each in rest for each in names):
            filled = path.format(**{each: quote(str(rest.pop(each)), safe="") for each in names})
            sent = {**rest, **tool.fixed}
            query, body = (sent, None) if tool.reads else ({}, sent)
            status, answer = await api.call(tool.method, filled, query, body)
            return status < 400, answer
    raise InputError(f"{name} was not called: name what it is about", [])
