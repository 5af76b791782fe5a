"""Anthropic's Messages API, as https://platform.claude.com/docs/en/api/messages describes it."""

from __future__ import annotations

from typing import Final

from catalog.dialects.anthropic.chat import (
    Sampling,
    build,
    build_body,
    build_headers,
    build_thinking,
    choose_sampling,
    effort_name,
    host,
    name_lost,
    names_deployments,
    operations,
    output_limit,
    parse_reply,
    stream_parser,
)
from catalog.dialects.anthropic.native import (
    NativeMessages,
    build_native_body,
    build_native_headers,
    build_native_request,
    drop_attribution,
    drop_scopes,
    mark_last_block,
)

native: Final = NativeMessages(host, build_native_request)
