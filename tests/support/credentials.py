"""Credentials that are refused, with the field that the error names."""

from __future__ import annotations

from typing import Any

MALFORMED: list[tuple[dict[str, Any], str]] = [
    *(
        ({"key": key}, "key")
        for key in (
            *(None, 5, True, [], {}, "", "1234567", "x" * 4097, "two words", "line\nbreak"),
            *("tab\ttab", "nul\x00byte", "schlüssel-", "\ud800" * 8, "[1, 2, 3]", '{"a": 1'),
            *("null", '{"a": "\ud800"}', '{"a": "' + "x" * 16_400 + '"}'),
        )
    ),
    *(({"provider": value}, "provider") for value in (None, 5, "", "unknown", "Acme AI", "acme ")),
    *(({"workspace_id": value}, "workspace_id") for value in (None, 5, "", "x", "0" * 32)),
    *(({"name": value}, "name") for value in (5, "", "a\n", "a" * 256)),
    *(
        ({name: value}, name)
        for name in ("disabled", "is_fallback", "is_required", "is_byok_only")
        for value in ("true", 1, [])
    ),
    ({"is_fallback": True, "is_byok_only": True}, "is_fallback"),
    *(({"allowed_models": value}, "allowed_models") for value in ("x", {}, 5)),
    ({"allowed_models": [""]}, "allowed_models[0]"),
    ({"allowed_models": ["x", 5]}, "allowed_models"),
    *(
        ({"allowed_api_key_hashes": value}, "allowed_api_key_hashes")
        for value in ("x", [], ["0" * 64], ["x"])
    ),
    *(
        ({"allowed_hosts": value}, "allowed_hosts")
        for value in ([], ["https://x"], ["x/y"], ["x:443"], ["UPPER"], ["-x"], [""])
    ),
    *(({"declared_region": value}, "declared_region") for value in ("eu", "", 1)),
    *(({"declared_zdr": value}, "declared_zdr") for value in ("yes", 0)),
    *(({name: 1}, name) for name in ("id", "label", "sort_order", "secret", "organization_id")),
]  # fmt: skip
