"""Amazon Bedrock: every model by Converse, and Claude in Anthropic's own format by InvokeModel."""

from __future__ import annotations

from typing import Final

from catalog.dialects.anthropic import NativeMessages
from catalog.dialects.bedrock.converse import (
    build,
    host,
    names_deployments,
    operations,
    parse_reply,
    stream_parser,
)
from catalog.dialects.bedrock.invoke import InvokeFrames, build_native

native: Final = NativeMessages(
    host, build_native, InvokeFrames, names_deployments=names_deployments
)
