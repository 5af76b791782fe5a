"""litellm: its functions ``completion`` and ``responses``."""

from __future__ import annotations

from typing import Any

import litellm

from tests.contract.clients.drivers.driver import MESSAGES, QUESTION, AskedChat, AskedResponses

# It imitates the streams of Responses for a model that it does not know.
NATIVE = {"litellm_provider": "openai", "mode": "chat", "supports_native_streaming": True}
litellm.register_model({"acme/falcon": NATIVE})


class Chat(AskedChat):
    def ask(self, model: str, **fields: Any) -> Any:
        return litellm.completion(
            model=f"openai/{model}",
            api_base=self.base_url,
            api_key=self.key,
            max_retries=0,
            **{"messages": MESSAGES, **fields},
        )

    def stream(self, model: str) -> list[str]:
        pieces = [chunk.choices[0].delta.content for chunk in self.ask(model, stream=True)]
        return [piece for piece in pieces if piece]

    def cancel(self, model: str) -> None:
        stream = self.ask(model, stream=True)
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        stream.completion_stream.close()


class Responses(AskedResponses):
    def ask(self, model: str, **fields: Any) -> Any:
        return litellm.responses(
            model=f"openai/{model}",
            api_base=self.base_url,
            api_key=self.key,
            **{"input": QUESTION, **fields},
        )

    def stream(self, model: str) -> list[str]:
        return [event.delta for event in self.ask(model, stream=True) if is_text(event)]

    def cancel(self, model: str) -> None:
        stream = self.ask(model, stream=True)
        next(event for event in stream if is_text(event))
        stream.response.close()


def is_text(event: Any) -> bool:
    kind = getattr(event.type, "value", event.type)
    return bool(kind == "response.output_text.delta")
