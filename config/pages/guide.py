"""The pages of ``docs/`` for a browser, below ``/docs/guide``: rendered when somebody reads them.

They are open to everybody, as the reference is: they tell nothing about the installation.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from django.http import Http404, HttpRequest
from django.http.response import HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import get_conditional_response

from config.server.health import read_only

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

# In a clone it is the folder of the project, and in an installation it stands beside the packages.
_FOLDER: Final = Path(__file__).resolve().parents[2] / "docs"
_PREFIX: Final = "/docs/guide"
_PICTURE: Final = ".svg"


@dataclass(frozen=True)
class _Page:
    """A rendered page; ``sections`` are the identifiers and titles of its table of contents."""

    title: str
    body: str
    sections: list[tuple[str, str]]


@cache
def _list_files() -> dict[str, Path]:
    """Returns the pages and pictures by what follows the prefix; nothing else is ever read."""
    found = {
        path.relative_to(_FOLDER).as_posix(): path
        for path in _FOLDER.rglob("*")
        if path.suffix in (".md", _PICTURE)
    }
    return {_name_of(path): file for path, file in found.items()}


def _name_of(path: str) -> str:
    """Returns the name in the address of a file: without its ending, and without ``index``."""
    name = path.removesuffix(".md")
    return posixpath.dirname(name) if posixpath.basename(name) == "index" else name


@read_only
def serve_guide(request: HttpRequest, name: str = "") -> HttpResponseBase:
    """Serves one page or picture; raises :class:`Http404` for any other name."""
    # People write an address with a slash at its end, too.
    name = name.removesuffix("/")
    file = _list_files().get(name)
    if file is None:
        raise Http404
    if file.suffix == _PICTURE:
        response = HttpResponse(file.read_bytes(), content_type="image/svg+xml")
    else:
        response = render(request, "guide.html", {"page": _read(name), "name": name})
    # A browser keeps it, and asks whether it still holds: an upgrade changes pages.
    etag = f'"{hashlib.sha256(response.content).hexdigest()[:32]}"'
    response["ETag"], response["Cache-Control"] = etag, "no-cache"
    return get_conditional_response(request, etag=etag, response=response) or response


@lru_cache(maxsize=16)
def _read(name: str) -> _Page:
    file = _list_files()[name]
    folder = file.relative_to(_FOLDER).parent.as_posix()
    parser = _make_parser()
    tokens = parser.parse(file.read_text(encoding="utf-8"))
    heads = [
        (token, content) for token, content in pairwise(tokens) if token.type == "heading_open"
    ]
    for head, content in heads:
        head.attrSet("id", _identify(content.content))
    for token in tokens:
        for inner in token.children or ():
            _point(inner, folder)
    titles = [(head, _read_text(content)) for head, content in heads]
    return _Page(
        title=next((title for head, title in titles if head.tag == "h1"), name),
        body=_let_scroll(parser.renderer.render(tokens, parser.options, {})),
        sections=[(str(head.attrGet("id")), title) for head, title in titles if head.tag == "h2"],
    )


@cache
def _make_parser() -> MarkdownIt:
    # A worker that shows no page spares three megabytes.
    library = import_module("markdown_it")
    parser: MarkdownIt = library.MarkdownIt("commonmark", {"html": False})
    return parser.enable("table")


def _let_scroll(body: str) -> str:
    """Lets wide tables and blocks scroll for themselves, by the keyboard too.

    Texts are escaped, so each of these tags is the renderer's own.
    """
    body = body.replace("<table>", '<div class="table" tabindex="0"><table>')
    return body.replace("</table>", "</table></div>").replace("<pre>", '<pre tabindex="0">')


def _identify(heading: str) -> str:
    """Returns the identifier that GitHub gives a heading: links between pages name it."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def _read_text(content: Token) -> str:
    return "".join(each.content for each in content.children or ())


def _point(token: Token, folder: str) -> None:
    """Changes the target of a link or picture from a path of ``docs/`` to an address."""
    attribute = {"link_open": "href", "image": "src"}.get(token.type)
    if attribute is None:
        return
    path, mark, section = str(token.attrGet(attribute)).partition("#")
    if path and ":" not in path:
        name = _name_of(posixpath.normpath(posixpath.join(folder, path)))
        token.attrSet(attribute, f"{_PREFIX}/{name}".rstrip("/") + mark + section)
