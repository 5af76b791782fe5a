"""The private members of uvicorn on which the HTTP protocol relies, in the pinned version."""

from __future__ import annotations

import inspect
import re

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from config.server.connections import parser, protocol, unread
from config.server.connections.parser import BoundedParser
from config.server.connections.protocol import HttpProtocol

# Each overridden method with the parameters that uvicorn passes.
OVERRIDDEN = {
    "__init__": ["self", "config", "server_state", "app_state", "_loop"],
    "connection_made": ["self", "transport"],
    "data_received": ["self", "data"],
    "on_message_begin": ["self"],
    "on_header": ["self", "name", "value"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "on_response_complete": ["self"],
    "shutdown": ["self"],
    "connection_lost": ["self", "exc"],
    "_start_asgi_task": ["self", "cycle", "app"],
}


def test_the_tested_minor_version_is_installed() -> None:
    assert uvicorn.__version__.split(".")[:2] == ["0", "54"]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_an_overridden_method_keeps_its_signature(name: str) -> None:
    signature = inspect.signature(vars(HttpToolsProtocol)[name])
    assert list(signature.parameters) == OVERRIDDEN[name]


def test_every_overridden_method_is_listed() -> None:
    inherited = vars(HttpToolsProtocol).keys() & {
        name
        for half in (BoundedParser, HttpProtocol)
        for name, member in vars(half).items()
        if inspect.isfunction(member)
    }
    assert inherited == OVERRIDDEN.keys()


def test_new_members_hide_no_member_of_uvicorn() -> None:
    source = inspect.getsource(HttpToolsProtocol) + inspect.getsource(RequestResponseCycle)
    ours = {
        name
        for module in (protocol, parser)
        for name in re.findall(r"self\.([a-z_]+)(?:: [^=]+)? = ", inspect.getsource(module))
    }
    assert ours >= {"_is_in_head", "_answered", "_unread", "is_recognized"}
    assert {name for name in ours if re.search(rf"\b{name}\b", source)} == set()


@pytest.mark.parametrize(
    "attribute",
    [
        "app_state",
        "client",
        "cycle",
        "flow",
        "headers",
        "loop",
        "parser",
        "pipeline",
        "scope",
        "server_state",
        "transport",
        "url",
    ],
)
def test_the_protocol_has_the_attributes_that_are_read(attribute: str) -> None:
    read = inspect.getsource(protocol) + inspect.getsource(parser) + inspect.getsource(unread)
    assert re.search(rf"(self|connection)\.{attribute}\b", read)
    assert re.search(rf"self\.{attribute}\b.* = ", inspect.getsource(HttpToolsProtocol))


def test_the_protocol_has_the_methods_that_are_called() -> None:
    called = ["timeout_keep_alive_task", "_unset_keepalive_if_required", "expect_100_continue"]
    for name in called:
        assert name in inspect.getsource(HttpToolsProtocol)


@pytest.mark.parametrize(
    "attribute",
    [
        "response_started",
        "response_complete",
        "disconnected",
        "message_event",
        "more_body",
        "keep_alive",
    ],
)
def test_a_cycle_has_the_attributes_that_are_read(attribute: str) -> None:
    assert re.search(rf"(_answered|cycle)\.{attribute}\b", inspect.getsource(protocol))
    assert f"self.{attribute} = " in inspect.getsource(RequestResponseCycle.__init__)


def test_a_cycle_that_keeps_the_connection_does_not_close_it() -> None:
    """We end the connection ourselves after a response that uvicorn would close."""
    source = inspect.getsource(RequestResponseCycle.send)
    assert "if not self.keep_alive:\n                    self.transport.close()" in source
    assert "if not self.keep_alive and not has_connection_close:" in source


def test_a_request_gets_a_new_scope_before_our_extension_is_added() -> None:
    assert "self.scope = " in inspect.getsource(HttpToolsProtocol.on_message_begin)
