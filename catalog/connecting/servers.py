"""What a list of models says about its server and its models; pure."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from config.egress.addresses import is_address

# The longest name of a model that a column holds beside the slug of its provider.
_LONGEST_ID: Final = 180
# The values of `owned_by` that the servers write.
_OWNERS: Final = {
    "llamacpp": ("llama-cpp", "llama.cpp"),
    "vllm": ("vllm", "vLLM"),
    "sglang": ("sglang", "SGLang"),
    "library": ("ollama", "Ollama"),
    "organization_owner": ("lm-studio", "LM Studio"),
}
# Servers name no output: what a model serves is guessed from its name.
_OUTPUTS: Final = (
    ("rerank", re.compile(r"rerank|cross-encoder|(?:^|[/_-])ms-marco-")),
    (
        "embeddings",
        re.compile(
            r"embed|sentence-transformers/|(?:^|[/_-])(?:bge|contriever|distiluse|e5|gritlm|gte|gtr"
            r"|labse|m3e|minilm|mpnet|msmarco|multi-qa|paraphrase|sentence-t5|simcse|uae-large"
            r"|all-(?:distil)?roberta|instructor-(?:base|large|xl))(?:[/_.:-]|$)"
        ),
    ),
    ("transcription", re.compile(r"whisper|parakeet")),
    ("speech", re.compile(r"(?:^|[/_-])(?:tts|kokoro|piper)(?:[/_.:-]|$)")),
)
_INPUTS: Final = ("text", "image", "file", "audio", "video")
_CONTEXTS: Final = ("max_model_len", "context_length", "max_context_length", "context_window")
_UNUSABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class ServedModel(NamedTuple):
    """A model that a server lists. ``pricing`` is that of a gateway, which alone names prices.

    ``inputs`` are empty where the list states none: what is unknown excludes nothing. An output
    that ``is_guessed`` may be another one.
    """

    upstream_id: str
    context_length: int | None = None
    output: str = "text"
    pricing: dict[str, Any] | None = None
    inputs: tuple[str, ...] = ()
    is_guessed: bool = False

    @property
    def likely_outputs(self) -> tuple[str, ...]:
        """The outputs that the model may have, the likeliest first."""
        is_open = self.is_guessed and self.output == "text"
        return ("text", "embeddings") if is_open else (self.output,)


class ServerKind(NamedTuple):
    """The software of a server: a slug for the provider, and the name of the software."""

    slug: str
    name: str


def read_models(body: bytes) -> list[dict[str, Any]] | None:
    """Returns the models of a list; ``None`` if the answer is none.

    OpenAI's list is in ``data``, Ollama's own and Google's in ``models``; some have no member.
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        found = found.get("data", found.get("models"))
    if not isinstance(found, list):
        return None
    rows = [{**row, "id": name_of(row)} for row in found if isinstance(row, dict)]
    return [row for row in rows if row["id"]]


def name_of(row: Mapping[str, Any]) -> str | None:
    """Returns the name of a model; ``None`` if no column holds it."""
    for name in ("id", "model", "name"):
        value = row.get(name)
        if isinstance(value, str) and value and not _UNUSABLE.search(value):
            return value if len(value) <= _LONGEST_ID else None
    return None


def read_model(row: dict[str, Any]) -> ServedModel:
    """Returns what a row says of its model."""
    architecture = row.get("architecture")
    stated = architecture if isinstance(architecture, dict) else {}
    inputs, outputs = stated.get("input_modalities"), stated.get("output_modalities")
    is_stated = isinstance(outputs, list) and outputs and isinstance(outputs[0], str)
    pricing = row.get("pricing")
    return ServedModel(
        row["id"],
        _find_context(row),
        outputs[0] if is_stated and outputs is not None else guess_output(row["id"]),
        pricing if isinstance(pricing, dict) and pricing else None,
        tuple(each for each in _INPUTS if isinstance(inputs, list) and each in inputs),
        not is_stated,
    )


def guess_output(name: str) -> str:
    """Returns what a model of that name makes: text, unless it says something else."""
    found = (output for output, pattern in _OUTPUTS if pattern.search(name.lower()))
    return next(found, "text")


def _find_context(row: dict[str, Any]) -> int | None:
    meta = row.get("meta")
    # llama.cpp's server: the length that it serves, and that of the training.
    served = [meta.get("n_ctx"), meta.get("n_ctx_train")] if isinstance(meta, dict) else []
    for value in (*served, *(row.get(name) for name in _CONTEXTS)):
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**12:
            return value
    return None


def recognize(rows: Iterable[dict[str, Any]], host: str) -> ServerKind:
    """Returns the software that wrote a list; the host names what is not known."""
    for row in rows:
        owner = row.get("owned_by")
        if isinstance(owner, str) and (kind := _OWNERS.get(owner.lower())) is not None:
            return ServerKind(*kind)
    if is_address(host) or host == "localhost":
        return ServerKind("server", "Server")
    labels = host.split(".")
    # The name of the company or of the machine: api.acme.com, gpu.lan.
    label = re.sub(r"[^a-z0-9]+", "-", labels[-2 if len(labels) > 1 else 0]).strip("-")
    # One letter is no name of a provider: api.x.ai.
    label = label if len(label) > 1 else "server"
    return ServerKind(label, label.capitalize())


def number_names(name: str) -> Iterator[str]:
    """Yields a name, and then the same with 2, 3 and so on behind it."""
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


def name_models(
    provider: str, upstream_ids: Sequence[str], used: Collection[str]
) -> dict[str, str]:
    """Returns a slug for each model, none of those that are used.

    It is the last part of the model's name, or the whole name where several end alike.
    """
    short = {each: _clean(re.split(r"[/\\]", each)[-1]) for each in upstream_ids}
    counts = Counter(short.values())
    taken = set(used)
    found: dict[str, str] = {}
    for each, name in short.items():
        slug = f"{provider}/{name if counts[name] == 1 else _clean(each)}"
        found[each] = next(slug for slug in number_names(slug) if slug not in taken)
        taken.add(found[each])
    return found


def _clean(name: str) -> str:
    text = re.sub(r"[^a-z0-9._-]+", "-", name.lower().removesuffix(".gguf")).strip("-.")
    return text or "model"
