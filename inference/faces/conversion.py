"""Converts whole replies of chat to the format of another interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from catalog.dialects.base import InvalidReply
from catalog.dialects.shared.raw import Piece
from config.api.errors import UpstreamError

# The longest answer that is converted, which takes several times its size.
_CONVERTED_BYTES: Final = 8_388_608
# The given one, its texts and the new one; texts outside of ASCII may take more.
CONVERTED_COPIES: Final = 3


def convert_reply(reply: list[Piece], render: Callable[[bytes], bytes]) -> list[Piece]:
    """Returns the reply as ``render`` writes it; raises :class:`UpstreamError`."""
    if sum(map(len, reply)) > _CONVERTED_BYTES:
        raise UpstreamError(
            f"The answer has more than {_CONVERTED_BYTES} bytes, the most that this interface "
            "converts. Ask for it at /chat/completions."
        )
    try:
        return [render(b"".join(reply))]
    except InvalidReply as exc:
        raise UpstreamError(f"The upstream provider's answer is not valid: {exc}") from None
