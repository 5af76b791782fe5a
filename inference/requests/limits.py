"""The limits of inference requests, which bound what a body may cost; generous for real callers.

Agents send 2,000 messages and 500 tools. A body within all limits takes at most about its own size
and 100 MB more while it is parsed, for about a second of a thread. docs/clients.md lists them.
"""

from __future__ import annotations

from typing import Final

import jiter
import msgspec

from config.api.errors import InvalidRequest
from config.api.scanning import BoundExceeded, Bounds, DuplicateKey, NumberOutOfRange, scan
from config.server.load.large_work import LARGE_BYTES

MAX_MESSAGES: Final = 10_000
# Parts of one message.
MAX_PARTS: Final = 10_000
MAX_TOOLS: Final = 2_000
# Choices of each prompt; and all that an answer may hold: choices of all prompts, or vectors.
MAX_CHOICES: Final = 128
MAX_ALL_CHOICES: Final = 2_048
MAX_STOPS: Final = 16
# ``depth`` is the bound of the decoder behind ``check_short``. Half a million values are more than
# the tokens that any provider takes in one request for embeddings.
BOUNDS: Final = Bounds(depth=200, containers=100_000, members=20_000, values=500_000, numbers=True)
_decode = msgspec.json.Decoder().decode


def check_short(text: bytes, bounds: Bounds) -> None:
    """Raises what :func:`scan` raises, for a text too short to exceed bounds other than the depth.

    Decoders in C accept most texts in a fraction of the time of a scan; the bound that the first
    one has of the depth must not be above ``bounds.depth``. The second one takes no number out of
    range. The scan decides about all others.
    """
    try:
        jiter.from_json(text, catch_duplicate_keys=True, cache_mode="none")
        _decode(text)
    except ValueError:
        scan(text, bounds)


def check_body(body: bytes) -> None:
    """Raises :class:`InvalidRequest` for a body beyond the limits, or with a duplicate key.

    Everything that reads a body relies on unique keys: a filter might read the first of two equal
    keys, and a provider the last. It also relies on numbers that its decoder takes: most members
    stay raw here, and are read when the request is billed, or not at all if they cannot be read.
    """
    try:
        (scan if len(body) > LARGE_BYTES else check_short)(body, BOUNDS)
    except BoundExceeded as exc:
        raise InvalidRequest(
            f"The body has more than {exc.limit:,} {exc.what}. Send less in one request."
        ) from None
    except DuplicateKey as exc:
        name = exc.key[:100]
        text = "An object of the body names this key twice; name it once."
        raise InvalidRequest(f"{name}: {text}", metadata={"fields": {name: text}}) from None
    except NumberOutOfRange as exc:
        if not (name := exc.member[:100]):
            raise InvalidRequest("The body has a number that is out of range.") from None
        text = "Has a number that is out of range."
        raise InvalidRequest(f"{name}: {text}", metadata={"fields": {name: text}}) from None
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not valid UTF-8.") from None
