"""Opens every connection to the network outside: one URL grammar, one address policy, two clients.

The order never changes: parse the URL with our own ASCII grammar, resolve its name once, judge
every answer, connect to a judged address, and only then speak TLS with the original name. There
is no second resolution, so a name whose answers change between check and use gains nothing.

`Door` is the asynchronous client of the data plane and of validation, `fetch` the synchronous one
of the control plane. Both follow no redirect, read neither proxy variables nor `.netrc`, ask for
an uncompressed body and bound what they read. They raise `EgressError` alone, in our own words:
an HTTP library can print a bearer key in its error, so no library exception leaves this package,
neither as text nor as a cause.
"""

from config.egress.addresses import BaseURL, EgressPolicy, InvalidURL, parse_base_url, refusal
from config.egress.client import Door, OutboundResponse, Peer
from config.egress.errors import (
    AddressRefused,
    BadResponse,
    ConnectFailed,
    EgressError,
    RedirectRefused,
    TimedOut,
    TLSFailed,
    TooLarge,
    UnsendableRequest,
)
from config.egress.fetch import fetch
from config.egress.rules import OutboundRequest

__all__ = [
    "AddressRefused",
    "BadResponse",
    "BaseURL",
    "ConnectFailed",
    "Door",
    "EgressError",
    "EgressPolicy",
    "InvalidURL",
    "OutboundRequest",
    "OutboundResponse",
    "Peer",
    "RedirectRefused",
    "TLSFailed",
    "TimedOut",
    "TooLarge",
    "UnsendableRequest",
    "fetch",
    "parse_base_url",
    "refusal",
]
