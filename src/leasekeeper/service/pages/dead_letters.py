"""Dead letters: jobs that used up their attempts, grouped by reason and task."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from leasekeeper.core.jobs import Job
from leasekeeper.service.pages.actions import DEAD, MAX_AT_ONCE, group_of
from leasekeeper.service.pages.filter_language import read_filter
from leasekeeper.service.pages.rendering import page
from leasekeeper.service.pages.visit import Visit

SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Group:
    """Dead jobs of one task that stopped for one reason."""

    reason: str
    task: str
    jobs: Sequence[Job]


async def view(visit: Visit) -> Response:
    asked = read_filter(Job, visit.query.get("q", ""))
    jobs: list[Job] = []
    if not asked.problems:
        jobs = await visit.find_all(Job, {**asked.where, **DEAD}, maximum=MAX_AT_ONCE)
    grouped: dict[tuple[str, str], list[Job]] = defaultdict(list)
    for job in jobs:
        grouped[group_of(job)].append(job)
    groups = sorted((Group(*key, found) for key, found in grouped.items()), key=lambda group: -len(group.jobs))
    return await page(visit, "dead_letters.html", title="Dead letters", asked=asked, groups=groups, shown=SHOWN)
