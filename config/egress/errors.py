"""Defines the errors of outbound exchanges."""

from __future__ import annotations


class EgressError(Exception):
    """An exchange failed. `str()` is the text for our logs, `public` the text for callers.

    Neither contains text from a library or from the other side. Problems with name, address, port
    and TLS share one public text: different texts would let a caller map an internal network.
    """

    text = "the exchange failed"
    public = "The upstream could not be reached."

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.text}: {self.detail}" if self.detail else self.text


class AddressRefused(EgressError):
    """The policy refuses the URL, an address of its name, or the port; nothing was connected."""

    text = "refused by the egress policy"


class ConnectFailed(EgressError):
    """No response began: unknown name, refused, unreachable, or closed before the headers."""

    text = "could not connect"


class TLSFailed(EgressError):
    """The certificate or the handshake is wrong; no request header was sent."""

    text = "TLS failed"


class TimedOut(EgressError):
    """A time limit passed; `phase` is "connect", "first byte", "idle" or "total"."""

    text = "timed out"

    def __init__(self, phase: str) -> None:
        super().__init__(phase)
        self.phase = phase
        if phase != "connect":
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
    """The response violates HTTP, ends early, or is compressed although that was not requested."""

    text = "the answer is not usable HTTP"
    public = "The upstream's answer is invalid."


class UnsendableRequest(EgressError):
    """A header contains a control character or is not ASCII; nothing was sent."""

    text = "the request cannot be sent"
    public = "The request cannot be sent to the upstream."
