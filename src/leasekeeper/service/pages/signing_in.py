"""Signs people in to the pages: a token in a cookie that no script and no other site can use."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

COOKIE: Final = "leasekeeper_token"
COOKIE_SECONDS: Final = 30 * 86_400
HOME: Final = "/ui/"


def cookie_path(request: Request) -> str:
    return f"{request.scope.get('root_path', '')}/ui"


def set_cookie(request: Request, response: Response, text: str) -> None:
    """Keep the token in the browser."""
    keep(request, response, COOKIE, text)


def keep(request: Request, response: Response, name: str, text: str) -> None:
    """Set a cookie that is sent to our pages only, and that scripts cannot read."""
    response.set_cookie(
        name,
        text,
        max_age=COOKIE_SECONDS,
        path=cookie_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def forget_cookie(request: Request, response: Response) -> None:
    response.delete_cookie(
        COOKIE, path=cookie_path(request), secure=request.url.scheme == "https", httponly=True, samesite="strict"
    )


def safe_next(text: str | None) -> str:
    """Where to go after signing in: always a page of ours, whatever the URL says."""
    if text and text.startswith(HOME) and "\\" not in text and text.isprintable():
        return text
    return HOME
