"""Log records with the ids of their request and generation, and with every secret masked."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from django.http import HttpRequest
from django.http.response import HttpResponseBase

request_id: ContextVar[str] = ContextVar("request_id", default="")
generation_id: ContextVar[str] = ContextVar("generation_id", default="")

_SECRETS: Final = re.compile(
    r"\b(?:sk|mk|pk|rk)-[A-Za-z0-9_\-]{8,}|(?i:bearer)\s+[^\s'\",;]+|\bAKIA[0-9A-Z]{16}\b"
)
_CALLER_ID: Final = re.compile(r"[A-Za-z0-9._\-]{1,64}")


def mask(text: str) -> str:
    """Masks every key and bearer token in a text."""
    return _SECRETS.sub("********", text)


def new_request_id(offered: str | None) -> str:
    """Returns the caller's request id when it is well formed, else a random one."""
    return offered if offered and _CALLER_ID.fullmatch(offered) else os.urandom(8).hex()


class ContextFilter(logging.Filter):
    """Adds the ids of the current request and generation to each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        record.generation_id = generation_id.get()
        return True


class UnavailableFilter(logging.Filter):
    """Drops Django's line for each response with 503.

    Whatever refuses for a while, an outage of the database or a budget of the worker, is in the log
    once and in the metrics.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return getattr(record, "status_code", None) != 503


class TextFormatter(logging.Formatter):
    """Formats records as one readable line for a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        ids = " ".join(
            f"{name}={value}"
            for name in ("request_id", "generation_id")
            if (value := getattr(record, name, ""))
        )
        line = super().format(record)
        return mask(f"{line} {ids}" if ids else line)


class JSONFormatter(logging.Formatter):
    """Formats records as one JSON object a line, for a log collector."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("request_id", "generation_id"):
            if value := getattr(record, name, ""):
                entry[name] = value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # Values are masked before they are quoted: a mask could remove the backslash of a quote.
        return json.dumps({name: mask(value) for name, value in entry.items()}, ensure_ascii=False)


class RequestIdMiddleware:
    """Gives each request of the control plane an id, for its log records and its response."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        token = request_id.set(new_request_id(request.headers.get("X-Request-Id")))
        try:
            response = self.get_response(request)
            response["X-Request-Id"] = request_id.get()
        finally:
            request_id.reset(token)
        return response
