"""Parses request bodies, in strict JSON only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

from django.conf import settings
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from config.api.errors import PayloadTooLarge
from config.api.text import CONTROL_CHARACTERS

MAX_DEPTH: Final = 32


class StrictJSONParser(BaseParser):
    """Parses one JSON object in UTF-8; refuses duplicate keys, NaN and deep nesting.

    Raises ``ParseError`` (400) for what is malformed and :class:`PayloadTooLarge` (413).
    Numbers with a fraction arrive as :class:`~decimal.Decimal`, so that money keeps its digits.
    """

    media_type = "application/json"

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        raw = stream.read(settings.MAX_REQUEST_BYTES + 1)
        if len(raw) > settings.MAX_REQUEST_BYTES:
            raise PayloadTooLarge
        try:
            body = json.loads(
                raw.decode("utf-8"),
                object_pairs_hook=_unique_keys,
                parse_float=Decimal,
                parse_constant=_refuse_constant,
            )
        except UnicodeDecodeError:
            raise ParseError("The body is not valid UTF-8.") from None
        except RecursionError:
            raise ParseError("The body is nested too deeply.") from None
        except json.JSONDecodeError as exc:
            raise ParseError(f"The body is not valid JSON ({exc.msg}).") from None
        except ValueError:  # an integer of more digits than Python converts
            raise ParseError("The body holds a number that is too long.") from None
        except InvalidOperation:  # an exponent beyond those of Decimal
            raise ParseError("The body holds a number that is out of range.") from None
        if not isinstance(body, dict):
            raise ParseError("The body must be a JSON object.")
        _check_depth(body)
        return body


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ParseError("The body names a key twice in one object.")
    if any(CONTROL_CHARACTERS.search(name) for name in members):
        raise ParseError("The body has a key with control characters.")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ParseError(f"The body holds {name}, which is not JSON.")


def _check_depth(value: Any, depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise ParseError("The body is nested too deeply.")
    children = value.values() if isinstance(value, dict) else value
    for child in children:
        if isinstance(child, dict | list):
            _check_depth(child, depth + 1)
