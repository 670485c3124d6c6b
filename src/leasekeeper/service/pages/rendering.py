"""Templates → HTML. Everything that is put into a template is escaped; times, ids and numbers look the same on every
page because they are written here.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from leasekeeper.core.leases import silent_for
from leasekeeper.core.profiles import ProfileState
from leasekeeper.service.pages.visit import FLASH, Flash, Visit
from leasekeeper.wording import ago, span

# No script, style, image or connection but our own; nothing inline, and no eval.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# With no referrer at all, browsers send forms with the origin "null", which the guards refuse.
HEADERS: Final = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
# Path, name, what it counts: the pages in the order of the navigation.
PAGES: Final = (
    ("/ui/", "Fleet", ""),
    ("/ui/queue", "Queue", ""),
    ("/ui/runs", "Runs", ""),
    ("/ui/reviews", "Reviews", "reviews"),
    ("/ui/dead-letters", "Dead letters", "dead"),
    ("/ui/conflicts", "Conflicts", ""),
    ("/ui/activity", "Activity", ""),
    ("/ui/settings", "Settings", ""),
)
# Where records are that have an address of their own: begin of the address → page of the navigation.
RECORDS: Final = {"/ui/profiles/": "/ui/", "/ui/jobs/": "/ui/queue"}
# A cell without a value. On a phone it is hidden, with its label.
NONE: Final = Markup('<span class="none">–</span>')


@cache
def environment() -> Environment:
    """The templates, loaded once."""
    made = Environment(
        loader=PackageLoader("leasekeeper.service.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {
        "NONE": NONE,
        "PAGES": PAGES,
        "STATES": tuple(ProfileState),
        "asset_version": asset_version,
        "page_of": page_of,
    }
    made.filters |= {
        "number": number,
        "words": words,
        "short": short,
        "plural": plural,
        "seconds": seconds,
        "capital": capital,
        "sentence": sentence,
    }
    return made


def page_of(here: str) -> str:
    """The page of the navigation that an address belongs to."""
    for begin, path in RECORDS.items():
        if here.startswith(begin):
            return path
    return next((path for path, _, _ in PAGES if path != "/ui/" and here.startswith(path)), here)


def number(value: float | None) -> str:
    """1234567 → 1,234,567."""
    return "" if value is None else f"{value:,}"


def words(code: object) -> str:
    """A code as people read it: `review_required` → `review required`."""
    return str(code).replace("_", " ")


def plural(word: str, count: int) -> str:
    """`1 proxy`, `1,200 proxies`."""
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{count:,} {word if count == 1 else many}"


def capital(text: object) -> str:
    """With a capital letter at its beginning. The rest stays as it is: ids and codes are written as they are."""
    whole = str(text)
    return whole[:1].upper() + whole[1:]


def sentence(text: object) -> str:
    """With a capital letter, and a full stop at its end."""
    whole = capital(text)
    return whole if not whole or whole[-1] in ".!?" else f"{whole}."


def short(text: object, length: int = 12) -> str:
    """The end of a long id: ids that are made at about the same time begin alike."""
    whole = str(text)
    return whole if len(whole) <= length else f"…{whole[-length:]}"


def seconds(value: float) -> str:
    """A duration: `0.42 s`, `12.0 s`, `3 min 5 s`."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    return f"{int(value // 60)} min {int(value % 60)} s"


@cache
def asset_version(name: str) -> str:
    """A part of the URL that changes with the content, so that browsers can cache an asset for ever."""
    return hashlib.sha256(asset(name)).hexdigest()[:12]


@cache
def asset(name: str) -> bytes:
    """The content of an asset. Raises FileNotFoundError."""
    place = resources.files("leasekeeper.service.pages").joinpath("assets")
    folder, _, file = name.rpartition("/")
    return (place.joinpath(folder) if folder else place).joinpath(file).read_bytes()


def when(at: datetime | None, now: datetime) -> Markup:
    """A time relative to now, with the exact one on hover. A script keeps it up to date."""
    if at is None:
        return NONE
    exact = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    text = ago(at, now)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), exact, text)


def link(root: str, path: str, **query: object) -> str:
    """The address of a page. Empty values are left out."""
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return f"{root}{quote(path, safe='/:@')}" + (f"?{urlencode(given)}" if given else "")


async def page(visit: Visit, template: str, *, title: str, status: int = 200, **data: Any) -> HTMLResponse:
    """One page with the navigation around it."""
    stats = await visit.stats()
    now, root = stats.now, visit.request.scope.get("root_path", "")
    # A background refresh keeps the message for the page that the person is sent to.
    refreshes = "hx-request" in visit.request.headers
    flash = None if refreshes else Flash.read(visit.request.cookies.get(FLASH))
    here = visit.request.url.path.removeprefix(root)
    html = (
        environment()
        .get_template(template)
        .render(
            visit=visit,
            title=title,
            here=here,
            address=f"{here}?{visit.request.url.query}".rstrip("?"),
            flash=flash,
            counts={"reviews": stats.reviews, "dead": stats.jobs.get("dead", 0)},
            stats=stats,
            now=now,
            when=lambda at: when(at, now),
            link=lambda path, **query: link(root, path, **query),
            local=lambda path, **query: link("", path, **query),
            silence=lambda lease: silent_for(lease, now),
            span=span,
            **data,
        )
    )
    response = HTMLResponse(html, status, HEADERS)
    if flash is not None:
        response.delete_cookie(FLASH, path=f"{root}/ui")
    return response


def plain_page(request: Request, template: str, *, status: int = 200, **data: Any) -> HTMLResponse:
    """A page for somebody who is not signed in."""
    root = request.scope.get("root_path", "")
    html = (
        environment()
        .get_template(template)
        .render(link=lambda path, **query: link(root, path, **query), visit=None, **data)
    )
    return HTMLResponse(html, status, HEADERS)


def field_text(data: Mapping[str, object]) -> Markup:
    """The data of an event as `name value` pairs."""
    parts = [
        Markup('<span class="pair"><span class="dim">{}</span> {}</span>').format(words(name), escape(_plain(value)))
        for name, value in data.items()
        if value not in (None, "", [], {})
    ]
    return Markup(" ").join(parts)


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{words(name)} {_plain(each)}" for name, each in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return str(value)
