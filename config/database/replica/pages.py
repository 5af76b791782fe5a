"""Reads the console's lists and its first page from the replica, after what the operator wrote.

Forms, confirmations and the page of a row are read from the primary: what an operator reads there
decides what they write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from django.core import signing
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from config.database.replica.reading import answer, find_position, has_replica

View = Callable[..., HttpResponseBase]

COOKIE: Final = "causeway_written"
_SALT: Final = "config.database.replica.pages"
# Whatever an operator has written, a replica that is farther behind is not read at all.
_COOKIE_SECONDS: Final = 300


def read_from_replica(view: View) -> View:
    """Wraps a page of the console, behind the check of the operator's permission to enter.

    A request that may write is answered with a signed cookie, which has the primary's position. So
    the next page is read from the replica once that has replayed the position, on whatever host.
    """

    @wraps(view)
    def show(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponseBase:
        if not has_replica():
            return view(request, *arguments, **named)
        if _is_list(request):
            # What an operator may see is remembered by the operator's object, from the primary.
            user: Any = request.user
            user.get_all_permissions()
            return answer(
                lambda: _render(view(request, *arguments, **named)), after=read_position(request)
            )
        response = view(request, *arguments, **named)
        if request.method == "POST":
            response.set_cookie(
                COOKIE,
                signing.dumps(find_position(), salt=_SALT),
                max_age=_COOKIE_SECONDS,
                secure=request.is_secure(),
                httponly=True,
                samesite="Lax",
            )
        return response

    return show


def _is_list(request: HttpRequest) -> bool:
    match = request.resolver_match
    name = (match.url_name if match else None) or ""
    return request.method in ("GET", "HEAD") and (name == "index" or name.endswith("_changelist"))


def _render(response: HttpResponseBase) -> HttpResponseBase:
    """Renders a template's response now, because that is when its rows are read."""
    if hasattr(response, "render"):
        response.render()
    return response


def read_position(request: HttpRequest) -> int:
    """Returns the position after the operator's last write, 0 if there was none lately."""
    try:
        return int(
            signing.loads(request.COOKIES.get(COOKIE, ""), salt=_SALT, max_age=_COOKIE_SECONDS)
        )
    except (signing.BadSignature, ValueError, TypeError):
        return 0
