"""The page at ``/``, for people who open the address of the service in a browser."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from config.server.health import read_only


@read_only
def landing(request: HttpRequest) -> HttpResponse:
    """Says what this is and where to go; it tells a stranger nothing about the installation."""
    origin = request.build_absolute_uri("/").rstrip("/")
    response = render(request, "landing.html", {"origin": origin})
    response["Cache-Control"] = "no-store"
    response["X-Robots-Tag"] = "noindex"
    return response
