"""docs/reference/lists.md: what can be listed, and by which filters."""

from leasekeeper.lists import LISTS, MAX_IN_PAGE, Filter
from tools.markdown import code, page, summary, table


def lists() -> str:
    """What can be listed, and by which filters."""
    return page(
        "Lists",
        '`await client.find(Job, state="blocked")` gives a page of records that match every filter;\n'
        "`await client.get(Job, job_id)` gives one by the key in the second column.",
        table(
            ["kind", "key", "order", "what", "filters"],
            [
                (
                    f"`{kind.__name__}`",
                    f"`{listing.key}`" if listing.key else "",
                    str(listing.order),
                    summary(kind).split(". ")[0].rstrip("."),
                    code(listing.names),
                )
                for kind, listing in LISTS.items()
            ],
        ),
        "## Filters",
        table(
            ["filter", "of", "only those", "values"],
            [
                (f"`{each.name}`", ", ".join(f"`{kind}`" for kind in kinds), each.doc, _filter_values(each))
                for each, kinds in _filters().items()
            ],
        ),
        f"- Values are text. A page has 100 records unless `limit` says otherwise, at most {MAX_IN_PAGE:,};\n"
        "  `page.after` continues it, and None ends it.\n"
        "- `state` and `blocked_reason` of a job are those that are shown: a queued job behind a taken profile is\n"
        "  `blocked`, for its lane's reason.\n"
        "- A `Lane` is the running side of a profile: its state, its last token, the head of its queue.\n"
        "- A filter that the kind does not have is an error that names those it has.",
    )


def _filters() -> dict[Filter, list[str]]:
    """Each filter with the kinds that have it."""
    found: dict[Filter, list[str]] = {}
    for kind, listing in LISTS.items():
        for each in listing.filters:
            found.setdefault(each, []).append(kind.__name__)
    return found


def _filter_values(each: Filter) -> str:
    if each.choices:
        return code(each.choices) if len(each.choices) <= 12 else f"one of {each.kind.__name__}"
    return {bool: "`1` or `0`", int: "a number"}.get(each.kind, "text")
