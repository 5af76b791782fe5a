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
from config.api.scanning import BoundExceeded, Bounds, DuplicateKey, scan
from config.api.text import CONTROL_CHARACTERS

# Decoding keeps all else of the worker waiting. The longest lists that a route takes have 1,000
# items.
_BOUNDS: Final = Bounds(depth=32, containers=20_000, members=20_000, values=200_000)


class StrictJSONParser(BaseParser):
    """Parses one JSON object in UTF-8; refuses duplicate keys, NaN and what exceeds its bounds.

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
            scan(raw, _BOUNDS)
            body = json.loads(
                raw.decode("utf-8"),
                object_hook=_check_keys,
                parse_float=Decimal,
                parse_constant=_refuse_constant,
            )
        except UnicodeDecodeError:
            raise ParseError("The body is not valid UTF-8.") from None
        except BoundExceeded as exc:
            text = f"The body has more than {exc.limit:,} {exc.what}. Send less in one request."
            raise ParseError(text) from None
        except DuplicateKey:
            raise ParseError("The body names a key twice in one object.") from None
        except json.JSONDecodeError as exc:
            raise ParseError(f"The body is not valid JSON ({exc.msg}).") from None
        except ValueError:  # an integer of more digits than Python converts
            raise ParseError("The body holds a number that is too long.") from None
        except InvalidOperation:  # an exponent beyond those of Decimal
            raise ParseError("The body holds a number that is out of range.") from None
        if not isinstance(body, dict):
            raise ParseError("The body must be a JSON object.")
        return body


def _check_keys(members: dict[str, Any]) -> dict[str, Any]:
    if any(CONTROL_CHARACTERS.search(name) for name in members):
        raise ParseError("The body has a key with control characters.")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ParseError(f"The body holds {name}, which is not JSON.")
