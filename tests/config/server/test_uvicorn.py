"""The private members of uvicorn on which the HTTP protocol relies, in the pinned version."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from config.server import http_protocol
from config.server.http_protocol import HttpProtocol

# Each overridden method with the parameters that uvicorn passes.
OVERRIDDEN = {
    "__init__": ["self", "config", "server_state", "app_state", "_loop"],
    "data_received": ["self", "data"],
    "on_message_begin": ["self"],
    "on_headers_complete": ["self"],
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
        name for name, member in vars(HttpProtocol).items() if inspect.isfunction(member)
    }
    assert inherited == OVERRIDDEN.keys()


@pytest.mark.parametrize("name", ["_is_in_head", "_answered", "_watch", "_refuse"])
def test_new_members_hide_no_member_of_uvicorn(name: str) -> None:
    assert name not in inspect.getsource(HttpToolsProtocol)


@pytest.mark.parametrize("attribute", ["scope", "transport", "loop"])
def test_the_protocol_has_the_attributes_that_are_read(attribute: str) -> None:
    assert f"self.{attribute}" in Path(http_protocol.__file__).read_text()
    assert f"self.{attribute}" in inspect.getsource(HttpToolsProtocol)


@pytest.mark.parametrize(
    "attribute", ["response_started", "response_complete", "disconnected", "message_event"]
)
def test_a_cycle_has_the_attributes_that_are_read(attribute: str) -> None:
    assert f"_answered.{attribute}" in Path(http_protocol.__file__).read_text()
    assert f"self.{attribute} = " in inspect.getsource(RequestResponseCycle.__init__)


def test_a_request_gets_a_new_scope_before_our_extension_is_added() -> None:
    assert "self.scope = " in inspect.getsource(HttpToolsProtocol.on_message_begin)
