"""Warnings of `submit` about tasks that no worker offers, with the most similar name."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from leasekeeper.errors import UnknownTask, nearest
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Submitted

if TYPE_CHECKING:
    from leasekeeper.ports import Store

MAX_WARNINGS = 20


async def warnings(store: "Store", answers: Sequence[Submitted]) -> list[str]:
    """One sentence for each task that no worker of its pool has offered, and for each pool that never had a worker:
    there every task is unknown."""
    wanted = {(str(a.job.pool), a.job.task) for a in answers if not a.already_handled and _may_be_unknown(a)}
    if not wanted:
        return []
    offered = await _offered(store)
    strange = [(pool, task) for pool, task in sorted(wanted) if pool in offered and task not in offered[pool]]
    said = [_sentence(pool, task, offered[pool]) for pool, task in strange[:MAX_WARNINGS]]
    said += [_no_worker_yet(pool) for pool in sorted({pool for pool, _ in wanted} - offered.keys())[:MAX_WARNINGS]]
    more = len(strange) - MAX_WARNINGS
    return said + ([f"and {more:,} more tasks that no worker offers"] if more > 0 else [])


async def with_hint(store: "Store", error: UnknownTask, tasks: Iterable[str]) -> UnknownTask:
    """The refusal, with the most similar task as a hint."""
    offered = await _offered(store)
    known = {task for each in offered.values() for task in each}
    near = {task: nearest(task, known) for task in sorted(set(tasks) - known)}
    hints = [f"{task}: did you mean {meant}?" for task, meant in near.items() if meant]
    error.message = "\n  ".join([error.message, *hints[:MAX_WARNINGS]])
    return error


def _may_be_unknown(answer: Submitted) -> bool:
    """Whether the job waits for a worker, or is due later: then it was not checked yet whether a worker offers its
    task.
    """
    from leasekeeper.core.jobs import JobState
    from leasekeeper.core.readiness import Blocked

    return answer.job.blocked_reason == Blocked.NO_WORKER or answer.job.state is JobState.SCHEDULED


async def _offered(store: "Store") -> dict[str, set[str]]:
    """The tasks of each pool, by the newest workers that reported to this store."""
    from leasekeeper.core.workers import Worker

    offered: dict[str, set[str]] = {}
    for worker in (await store.find(Worker, limit=MAX_IN_PAGE)).items:
        offered.setdefault(worker.pool, set()).update(worker.tasks)
    return offered


def _no_worker_yet(pool: str) -> str:
    where = "no worker has" if pool == "default" else f"no worker of pool {pool} has"
    option = "" if pool == "default" else f" --pool {pool}"
    return f"{where} run yet; start one: leasekeeper up MODULE:APP{option}, e.g. tasks:app"


def _sentence(pool: str, task: str, offered: Iterable[str]) -> str:
    meant = nearest(task, offered)
    where = "no worker" if pool == "default" else f"no worker of pool {pool}"
    hint = f"did you mean {meant}?" if meant else f"there are: {', '.join(sorted(offered)[:5])}."
    return f"{where} offers {task}; {hint} It waits until one does"
