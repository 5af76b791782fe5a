"""The members of uvicorn's server on which the HTTP protocol relies, in the pinned version."""

from __future__ import annotations

import inspect
import re

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from config.server.connections import cycle, protocol
from config.server.connections.protocol import HttpProtocol


def test_the_tested_minor_version_is_installed() -> None:
    assert uvicorn.__version__.split(".")[:2] == ["0", "54"]


def test_the_server_passes_what_the_protocol_takes() -> None:
    passed = {"config", "server_state", "app_state", "_loop"}
    assert passed >= {*inspect.signature(protocol.BoundedParser).parameters}


def test_the_server_calls_only_what_the_protocol_has() -> None:
    source = inspect.getsource(uvicorn.Server)
    called = set(re.findall(r"\bconnection\.([a-z_]+)\(", source))
    assert called == {"shutdown"}
    assert hasattr(HttpProtocol, "shutdown")


@pytest.mark.parametrize("attribute", ["connections", "default_headers", "tasks", "total_requests"])
def test_the_state_of_the_server_has_the_attributes_that_are_used(attribute: str) -> None:
    used = inspect.getsource(protocol) + inspect.getsource(cycle)
    assert f"server_state.{attribute}" in used
    assert hasattr(ServerState(), attribute)


def test_the_flow_control_has_the_members_that_are_used() -> None:
    used = inspect.getsource(protocol) + inspect.getsource(cycle)
    members = set(re.findall(r"\bflow\.([a-z_]+)", used))
    assert members >= {"drain", "pause_reading", "resume_reading", "write_paused"}
    for member in members:
        assert hasattr(FlowControl, member) or f"self.{member} = " in inspect.getsource(FlowControl)
