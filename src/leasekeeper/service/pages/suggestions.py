"""Completions of a filter: names of filters, values of those with a fixed set, ids with this beginning."""

import shlex
from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import Review
from leasekeeper.core.events import Event
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.workers import Worker
from leasekeeper.service.pages.filter_language import names_of
from leasekeeper.service.pages.visit import Visit

KINDS: Final[dict[str, type]] = {"profiles": Lane, "jobs": Job, "runs": RunRecord, "events": Event, "reviews": Review}
MAX_SUGGESTED: Final = 12
MAX_WORKERS: Final = 200
MAX_PROFILES: Final = 300  # the number of profiles that are read for their values


async def view(visit: Visit) -> Response:
    """`?of=profiles&term=state:qu` → terms that could be meant, each with a word of explanation."""
    kind = KINDS.get(visit.query.get("of", ""), Lane)
    term = visit.query.get("term", "")[:200]
    name, colon, value = term.partition(":")
    known = names_of(kind)
    if not colon:
        found = [(f"{each}:", spec.doc) for each, spec in known.items() if each.startswith(name)]
        if name:
            found += [(each, "profile") for each in await _ids(visit, Lane, "profile_id", name)]
    elif name in known:
        spec = known[name]
        values = list(spec.choices) or await _values(visit, spec.name, value)
        found = [(shlex.quote(f"{name}:{each}"), "") for each in values if each.startswith(value)]
    else:
        found = []
    return JSONResponse([{"term": text, "doc": doc} for text, doc in found[:MAX_SUGGESTED]])


async def _values(visit: Visit, name: str, begin: str) -> list[str]:
    """The known values of a filter."""
    match name:
        case "account_id":
            return await _ids(visit, Account, "account_id", begin)
        case "profile_id":
            return await _ids(visit, Lane, "profile_id", begin)
        case "task":
            return sorted({task for worker in await _workers(visit) for task in worker.tasks})
        case "worker_id":
            return sorted({str(worker.worker_id) for worker in await _workers(visit)})
        case "pool":
            profiles = await visit.find_if_allowed(Profile, limit=MAX_PROFILES)
            return sorted({each.pool for each in profiles} | {each.pool for each in await _workers(visit)})
        case "label":
            profiles = await visit.find_if_allowed(Profile, limit=MAX_PROFILES)
            return sorted({f"{label}={text}" for each in profiles for label, text in each.labels.items()})
        case "tier" | "home":
            lanes = await visit.find_if_allowed(Lane, limit=MAX_PROFILES)
            return sorted({str(found) for each in lanes if (found := getattr(each, name))})
        case "stop_reason":
            return sorted(Reason)
        case _:
            return []


async def _workers(visit: Visit) -> Sequence[Worker]:
    return await visit.find_if_allowed(Worker, limit=MAX_WORKERS)


async def _ids(visit: Visit, kind: type[Any], key: str, begin: str) -> list[str]:
    where = {"prefix": begin} if begin else {}
    return [str(getattr(each, key)) for each in await visit.find_if_allowed(kind, where, limit=MAX_SUGGESTED)]
