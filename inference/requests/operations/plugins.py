"""Plugins: those that this service runs, and the refusal of every other one by its name."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from inference.requests.problems import explain_decode_error, field_error
from inference.requests.schemas import Plugin

MAX_PLUGINS: Final = 32
# Members of the web plugin that every search takes, or that ask for nothing.
_NATIVE: Final = frozenset(("native", "auto", "", None))
_PLACE: Final = ("city", "country", "region", "timezone")
_UNSET: Final[tuple[Any, ...]] = (None, False, "", [], {})
# The engines that read the text of a PDF. Their names are those of other gateways: the first is the
# present one, and what it names there is a service that is not used here.
_TEXT_ENGINES: Final = ("cloudflare-ai", "pdf-text")


class _WebPlugin(msgspec.Struct):
    engine: str | None = None
    user_location: dict[str, Any] | None = None


class _PdfOptions(msgspec.Struct):
    engine: str | None = None


class _FileParser(msgspec.Struct):
    pdf: _PdfOptions | None = None


class _Compression(msgspec.Struct):
    engine: str | None = None


class WebSearch(msgspec.Struct, frozen=True):
    """A search of the web; ``field`` is the name of the field that asks for it."""

    field: str
    options: msgspec.Raw = msgspec.Raw(b"{}")


class Plugins(NamedTuple):
    """The tasks that the enabled plugins set.

    ``pdf_field`` is the name of the field that asks for the text of PDF files, and ``shortening``
    that of the one that asks to shorten a prompt that is too long.
    """

    search: WebSearch | None = None
    pdf_field: str | None = None
    shortening: str = ""


_decode_plugins = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_decode_plugin = msgspec.json.Decoder(Plugin).decode
_decode_web = msgspec.json.Decoder(_WebPlugin).decode
_decode_parser = msgspec.json.Decoder(_FileParser).decode
_decode_compression = msgspec.json.Decoder(_Compression).decode
_decode_members = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def read_plugins(raw: msgspec.Raw) -> Plugins:
    """Returns what the enabled plugins ask for.

    Raises :class:`InvalidRequest` for a plugin that this service does not run, and for a member of
    the web plugin that no provider's own search has.
    """
    try:
        plugins = _decode_plugins(raw) or []
    except msgspec.ValidationError as exc:
        raise explain_decode_error(str(exc), within="plugins") from None
    if len(plugins) > MAX_PLUGINS:
        raise field_error("plugins", f"Expected array of length <= {MAX_PLUGINS}.")
    search: WebSearch | None = None
    pdf_field: str | None = None
    shortening = ""
    for index, each in enumerate(plugins):
        place = f"plugins[{index}]"
        try:
            plugin = _decode_plugin(each)
            if plugin.enabled is False:
                continue
            if plugin.id == "file-parser":
                if _reads_text(each, place):
                    pdf_field = f"{place}.pdf.engine"
                continue
            if plugin.id == "context-compression":
                shortening = _read_compression(each, place)
                continue
            if plugin.id != "web":
                raise field_error(
                    f"{place}.id",
                    "This service does not run the plugin. Leave it out, or set 'enabled' to "
                    "false.",
                )
            search = search or _read_web(each, place)
        except msgspec.ValidationError as exc:
            raise explain_decode_error(str(exc), within=place) from None
    return Plugins(search, pdf_field, shortening)


def _read_compression(raw: msgspec.Raw, place: str) -> str:
    """Returns the name of the field that asks to shorten a prompt; raises for another way."""
    engine = _decode_compression(raw).engine
    if engine not in (None, "middle-out"):
        raise field_error(f"{place}.engine", "Only 'middle-out' is known.")
    return f"{place}.id"


def _reads_text(raw: msgspec.Raw, place: str) -> bool:
    """Returns whether the service shall read PDF files, and not the model itself.

    Raises :class:`InvalidRequest` for an engine that does not run here, and without one: which one
    reads a file decides what it costs, and what the model sees of it.
    """
    pdf = _decode_parser(raw).pdf
    engine = None if pdf is None else pdf.engine
    if engine in _TEXT_ENGINES:
        return True
    if engine != "native":
        raise field_error(
            f"{place}.pdf.engine",
            "PDF files are read here as text ('cloudflare-ai') or by the model itself ('native').",
        )
    return False


def _read_web(raw: msgspec.Raw, place: str) -> WebSearch:
    """Returns the search of a web plugin in OpenAI's words, which the provider runs itself."""
    web = _decode_web(raw)
    if web.engine not in _NATIVE:
        raise field_error(f"{place}.engine", "Only the provider's own search ('native') runs here.")
    known = {"id", "enabled", *_WebPlugin.__struct_fields__}
    for name, value in _decode_members(raw).items():
        if name not in known and value not in _UNSET:
            raise field_error(f"{place}.{name[:64]}", "A provider's own search has no such option.")
    if not web.user_location:
        return WebSearch(f"{place}.id")
    spot = {name: web.user_location[name] for name in _PLACE if web.user_location.get(name)}
    options = {"user_location": {"type": "approximate", "approximate": spot}}
    return WebSearch(f"{place}.id", msgspec.Raw(_encode(options)))
