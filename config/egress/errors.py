"""Why an exchange with the network outside failed."""

from __future__ import annotations


class EgressError(Exception):
    """Tells why an exchange failed. `str()` is for our logs, `public` for everybody else.

    Neither holds a word that came from a library or from the other side. Name, address, port and
    TLS problems share one public sentence: telling them apart would map an internal network.
    """

    text = "the exchange failed"
    public = "The upstream could not be reached."

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.text}: {self.detail}" if self.detail else self.text


class AddressRefused(EgressError):
    """The policy refuses the URL, an address behind its name, or the port; nothing was dialled."""

    text = "refused by the egress policy"


class ConnectFailed(EgressError):
    """No answer began: no such name, refused, unreachable, or closed before the headers."""

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
    """The body is longer than allowed."""

    text = "the answer is too large"
    public = "The upstream's answer is too large."


class RedirectRefused(EgressError):
    """The answer is a redirect; none is followed."""

    text = "the answer is a redirect"
    public = "The upstream answered with a redirect."


class BadResponse(EgressError):
    """The answer breaks HTTP, ends early, or is compressed though nobody asked for it."""

    text = "the answer is not usable HTTP"
    public = "The upstream's answer is invalid."


class UnsendableRequest(EgressError):
    """A header holds a control character or one outside ASCII; nothing was sent."""

    text = "the request cannot be sent"
    public = "The request cannot be sent to the upstream."
