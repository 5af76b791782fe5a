"""The migrations before 1.0.0, which the first migration of each app replaces."""

from __future__ import annotations

from typing import Final

# They stand apart from the migrations, because importing those takes memory.
REPLACED: Final = {
    "accounts": (
        "0001_tables",
        "0002_reach",
        "0003_first_use_host",
        "0004_former_keys",
        "0005_former_keys_index",
        "0006_deleted_members",
        "0007_issued_by_operator",
        "0008_creation",
        "0009_own_limits",
        "0010_credential_rest",
    ),
    "billing": (
        "0001_tables",
        "0002_token_verified",
        "0003_repeats",
    ),
    "catalog": (
        "0001_tables",
        "0002_reach",
        "0003_abilities",
        "0004_own_models",
    ),
    "config": (
        "0001_tables",
        "0002_management_keys",
    ),
    "endpoints": (
        "0001_tables",
        "0002_settings_and_parameters",
        "0003_private_providers",
        "0004_models_of_endpoints",
        "0005_activations",
        "0006_who_validated",
        "0007_own_pages",
    ),
    "endusers": ("0001_tables",),
    "inference": (
        "0001_tables",
        "0003_lost_history",
        "0004_pool_meters",
        "0005_token_sums",
    ),
}
