"""What may follow in a filter: names of filters, values of those that have a fixed set, ids that begin so."""

from typing import Any, Final

from starlette.responses import JSONResponse, Response

from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import Review
from leasekeeper.core.events import Event
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import Lane
from leasekeeper.core.workers import Worker
from leasekeeper.service.pages.filter_language import names_of
from leasekeeper.service.pages.visit import Visit

KINDS: Final[dict[str, type]] = {"profiles": Lane, "jobs": Job, "runs": RunRecord, "events": Event, "reviews": Review}
MAX_SUGGESTED: Final = 12
MAX_WORKERS: Final = 200


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
        found = [(f"{name}:{each}", "") for each in values if each.startswith(value)]
    else:
        found = []
    return JSONResponse([{"term": text, "doc": doc} for text, doc in found[:MAX_SUGGESTED]])


async def _values(visit: Visit, name: str, begin: str) -> list[str]:
    """Values of a filter that are known now."""
    match name:
        case "account_id":
            return await _ids(visit, Account, "account_id", begin)
        case "profile_id":
            return await _ids(visit, Lane, "profile_id", begin)
        case "task" | "worker_id" | "pool":
            workers = await visit.find_if_allowed(Worker, limit=MAX_WORKERS)
            if name == "task":
                return sorted({task for worker in workers for task in worker.tasks})
            return sorted({str(getattr(worker, name)) for worker in workers})
        case _:
            return []


async def _ids(visit: Visit, kind: type[Any], key: str, begin: str) -> list[str]:
    where = {"prefix": begin} if begin else {}
    return [str(getattr(each, key)) for each in await visit.find_if_allowed(kind, where, limit=MAX_SUGGESTED)]
