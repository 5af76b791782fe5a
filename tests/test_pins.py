"""The lock files pin no release with a vulnerability that ``advisories.toml`` knows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest
from packaging.version import Version

PROJECT: Final = Path(__file__).parents[1]
ADVISORIES: Final = tomllib.loads((PROJECT / "tests/advisories.toml").read_text())
PIN: Final = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^\s;\\]+)", re.MULTILINE)


def read_pins() -> dict[str, set[tuple[str, str]]]:
    """Returns the packages and versions that each lock file pins."""
    build = PROJECT / "requirements-build.lock"
    pins = {build.name: set(PIN.findall(build.read_text()))}
    packages = tomllib.loads((PROJECT / "uv.lock").read_text())["package"]
    return pins | {"uv.lock": {(each["name"], each.get("version", "0")) for each in packages}}


def find_vulnerabilities(name: str, version: str) -> list[str]:
    """Returns the advisories that concern a release."""
    return [
        advisory
        for fixed, advisories in ADVISORIES.get(name, {}).items()
        if Version(version) < Version(fixed)
        for advisory in advisories
    ]


@pytest.mark.parametrize("file", read_pins())
def test_no_pin_is_known_to_be_vulnerable(file: str) -> None:
    pins = read_pins()[file]
    assert pins
    found = {f"{name} {version}": find_vulnerabilities(name, version) for name, version in pins}
    assert {pin: advisories for pin, advisories in found.items() if advisories} == {}


@pytest.mark.parametrize(
    ("version", "advisories"),
    [
        ("5.2.7", ["CVE-2025-64458", "CVE-2025-64459", "CVE-2025-13372", "CVE-2025-64460"]),
        ("5.2.8", ["CVE-2025-13372", "CVE-2025-64460"]),
        ("5.2.9", []),
        ("5.2.19", []),
    ],
)
def test_a_release_before_the_fix_is_found(version: str, advisories: list[str]) -> None:
    assert find_vulnerabilities("django", version) == advisories


def test_each_advisory_concerns_a_pinned_package() -> None:
    pinned = {name for pins in read_pins().values() for name, _ in pins}
    assert ADVISORIES.keys() - pinned == set()
    ids = [each for fixes in ADVISORIES.values() for listed in fixes.values() for each in listed]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"CVE-20[0-9]{2}-[0-9]{4,}", each) for each in ids)
