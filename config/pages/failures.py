"""Pages in plain English for what the service refuses a browser or fails at.

Programs get the error envelope instead. The pages need neither a session nor the database nor a
template: they are also the answer when one of these fails.
"""

from __future__ import annotations

import html
from typing import Final

import msgspec
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from config.api.errors import GatewayError, InvalidRequest, MethodNotAllowed, NotFound
from config.console.sign_in.recognition import PREFIX
from config.server.bodies import Scope
from config.server.logs import request_id

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>{title} | Causeway</title>
  <link rel="icon" type="image/svg+xml" href="/static/causeway/icon.svg">
  <link rel="stylesheet" href="/static/causeway/landing.css">
</head>
<body>
  <main>
    <h1>{title}</h1>
    {paragraphs}
    <p><a href="{way}">{name}</a></p>
  </main>
</body>
</html>
"""
_RETRY: Final = "Nothing was changed. Wait a few seconds, go back and try again."
_FAILED: Final = (
    "The change may not have been made: look before you repeat it. If it happens again, tell the "
    "person who runs the server the number of this request."
)
# The title of each status, and what a person can do.
_TEXTS: Final = {
    400: (
        "This was not understood",
        "Nothing was changed. Go back, reload the page and try again.",
    ),
    404: ("There is no such page", "The address may be misspelt."),
    405: (
        "This address takes no such request",
        "Nothing was changed. It belongs to a button or a form: open the page that has it.",
    ),
    413: (
        "This is too large",
        "Nothing was changed. Send less, for instance a file in several parts.",
    ),
    429: ("Please try again", _RETRY),
    500: ("Something went wrong here", _FAILED),
    503: ("Please try again", _RETRY),
}
# What the titles say already.
_EMPTY: Final = frozenset(
    each.message for each in (GatewayError, InvalidRequest, MethodNotAllowed, NotFound)
)


def render_page(status: int, reason: str = "") -> bytes:
    """Returns the page of a status; ``reason`` is the sentence that says what happened."""
    title, advice = _TEXTS.get(status, _TEXTS[500 if status >= 500 else 400])
    texts = [reason, advice]
    if status == 500 and (number := request_id.get()):
        texts.append(f"Request {number}")
    way, name = (PREFIX, "To the console") if status != 404 else ("/", "To the first page")
    return _PAGE.format(
        title=html.escape(title),
        paragraphs="\n    ".join(f"<p>{html.escape(text)}</p>" for text in texts if text),
        way=way,
        name=name,
    ).encode()


def page_of(error: GatewayError) -> bytes:
    """Returns the page of an error."""
    return render_page(error.status, "" if error.message in _EMPTY else error.message)


def render_refusal(scope: Scope, error: GatewayError) -> tuple[str, bytes]:
    """Returns the content type and the body of a request that is refused before Django sees it."""
    if scope["path"].startswith(PREFIX):
        return "text/html; charset=utf-8", page_of(error)
    return "application/json", msgspec.json.encode(error.body())


def explain(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Gives an empty refusal of the console a page, for instance that of a wrong method."""
    if (
        response.status_code in _TEXTS
        and not getattr(response, "content", b"-")
        and request.path_info.startswith(PREFIX)
    ):
        response["Content-Type"] = "text/html; charset=utf-8"
        if request.method != "HEAD":
            response.content = render_page(response.status_code)  # type: ignore[attr-defined]
    return response
