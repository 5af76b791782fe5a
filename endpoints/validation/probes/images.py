"""The probe of images."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from catalog.dialects.base import Untranslatable
from endpoints.validation.calls import Refused
from endpoints.validation.probes.base import Probe

_PROMPT: Final = "A black square."
# What most providers sell at the lowest price.
_CHEAPEST: Final = {"size": "1024x1024", "quality": "low"}


class ImagesProbe(Probe):
    """Asks for one image, the cheapest that the provider has.

    A provider without a choice of sizes and qualities refuses the first call, which is free, and is
    asked for its only image.
    """

    check = "images"
    most_completion_tokens: ClassVar = 32_768
    # A PNG of 2048x2048 has up to 12 MiB, and a third more in Base64.
    most_reply_bytes: ClassVar = 16 * 1_048_576

    async def make_calls(self) -> None:
        fields: dict[str, Any] = {"prompt": _PROMPT}
        try:
            reply = await self.caller.ask({**fields, **_CHEAPEST})
        except Untranslatable:
            reply = await self.caller.ask(fields)
        except Refused as refusal:
            if refusal.status not in (400, 422):
                raise
            reply = await self.caller.ask(fields)
        if reply.choices != 1:
            raise self.refuse(f"The answer has {reply.choices} images instead of 1.")
        [image] = reply.fields["data"]
        if "media_type" not in image:
            raise self.refuse("The answer has no data of an image, or of none that is known.")
        self.note_reply(reply)
        self.result.evidence["media_type"] = image["media_type"]
        self.result.add_pass("images")
