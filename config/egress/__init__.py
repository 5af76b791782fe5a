"""Opens every connection to the network outside: one URL grammar, one address policy, two clients.

The order of the steps never changes: parse the URL with our own ASCII grammar, resolve the host
name once, judge every address, connect to a judged address, and only then start TLS with the
original name. There is no second resolution, so a name whose addresses change between check and
use gains nothing.

`EgressClient` is the asynchronous client of the data plane and of the endpoint validation; `fetch`
is the synchronous client of the control plane. Both follow no redirect, read neither proxy
variables nor `.netrc`, ask for an uncompressed body and limit the size of the response. They raise
only `EgressError`, with texts of our own: an HTTP library can print a bearer key in its error, so
no library exception leaves this package, neither as text nor as a cause.

The clients are imported from their own modules, `client` and `fetch`: the settings and the dialects
need only the policy and the shape of a request, and the libraries of the clients take 10 MB.
"""

from config.egress.addresses import (
    NO_REACH,
    BaseURL,
    EgressPolicy,
    InvalidURL,
    Reach,
    find_refusal,
    parse_base_url,
)
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
from config.egress.rules import OutboundRequest
