"""Defines the errors of outbound exchanges."""

from __future__ import annotations

from typing import ClassVar


class EgressError(Exception):
    """An exchange failed. `str()` is the text for our logs, `public` the text for callers.

    Neither contains text from a library or from the other side. Problems with name, address, port
    and TLS share one public text: different texts would let a caller map an internal network.
    `kind` names the failure. Where `is_unreachable` is true, the author of the URL must not learn
    it, for the same reason.
    """

    kind: ClassVar[str] = "protocol"
    is_unreachable = False
    text = "the exchange failed"
    public = "The upstream could not be reached."

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.text}: {self.detail}" if self.detail else self.text


class AddressRefused(EgressError):
    """The policy refuses the URL, an address of its name, or the port; nothing was connected."""

    kind = "policy"
    is_unreachable = True
    text = "refused by the egress policy"


class ConnectFailed(EgressError):
    """No response began: unknown name, refused, unreachable, or closed before the headers."""

    kind = "refused"
    is_unreachable = True
    text = "could not connect"


class NameUnknown(ConnectFailed):
    """The name has no address, or too many, or no name server told one in time."""

    kind = "name"


class ProxyFailed(ConnectFailed):
    """The operator's proxy cannot be reached, or did not make the connection."""

    text = "could not connect through EGRESS_PROXY_URL"


class ConnectionLost(ConnectFailed):
    """The upstream closed the connection before its answer began."""

    kind = "reset"
    is_unreachable = False


class TLSFailed(EgressError):
    """The certificate or the handshake is wrong; no request header was sent."""

    kind = "certificate"
    is_unreachable = True
    text = "TLS failed"


class TimedOut(EgressError):
    """A time limit passed; `phase` is "connect", "first byte", "idle" or "total"."""

    kind = "timeout"
    text = "timed out"

    def __init__(self, phase: str) -> None:
        super().__init__(phase)
        self.phase = phase
        if phase == "connect":
            self.is_unreachable = True
        else:
            self.public = "The upstream did not answer in time."


class TooLarge(EgressError):
    """The body exceeds the size limit."""

    text = "the answer is too large"
    public = "The upstream's answer is too large."


class RedirectRefused(EgressError):
    """The response is a redirect; redirects are never followed."""

    text = "the answer is a redirect"
    public = "The upstream answered with a redirect."


class BadResponse(EgressError):
    """The response violates HTTP, ends early, or is compressed."""

    text = "the answer is not usable HTTP"
    public = "The upstream's answer is invalid."


class Compressed(BadResponse):
    """The response is compressed although an uncompressed one was asked for."""

    text = "the answer is compressed"
    public = "The upstream's answer is compressed, although an uncompressed one was asked for."


class EndedEarly(BadResponse):
    """The connection ended inside the answer."""

    kind = "reset"
    public = "The upstream closed the connection before its answer was complete."


class UnsendableRequest(EgressError):
    """A header contains a control character or is not ASCII; nothing was sent."""

    kind = "untranslatable"
    text = "the request cannot be sent"
    public = "The request cannot be sent to the upstream."
