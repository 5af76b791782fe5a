"""Every module of the product stands in exactly one place of the import contracts."""

import fnmatch
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
}
FLOOR = CONTRACTS["The floor imports no app"]["source_modules"]
ROOF = [
    *CONTRACTS["The roof is imported by none"]["forbidden_modules"],
    # Settings read the pure parsers of the apps; Django reads the others by name.
    "config.settings",
    "*.apps",
    "*.migrations",
]
FACES = CONTRACTS["Faces are imported by faces and the roof alone"]["forbidden_modules"]
DOMAIN = CONTRACTS["Faces are imported by faces and the roof alone"]["source_modules"]
# Rooms whose modules belong to different layers, so that each module is listed by itself.
MIXED = ["accounts.destinations", "billing.topups"]


def modules_of(package: str) -> list[str]:
    folder = ROOT / package.replace(".", "/")
    return [
        f"{package}.{path.stem}"
        for path in folder.iterdir()
        if not path.name.startswith("_")
        and (path.suffix == ".py" or any(path.rglob("*.py")))
        and f"{package}.{path.stem}" not in MIXED
    ]


def is_listed(module: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(module, pattern) for pattern in patterns)


@pytest.mark.parametrize(
    "package", ["accounts", "billing", *MIXED, "catalog", "endpoints", "endusers", "inference"]
)
def test_every_module_of_an_app_is_domain_or_face_or_roof(package: str) -> None:
    for module in modules_of(package):
        places = [is_listed(module, patterns) for patterns in (DOMAIN, FACES, ROOF)]
        assert places.count(True) == 1, module


def test_every_module_of_config_is_floor_or_roof() -> None:
    for module in modules_of("config"):
        places = [is_listed(module, patterns) for patterns in (FLOOR, ROOF)]
        assert places.count(True) == 1, module


def test_the_domain_of_every_app_is_in_the_contract_of_that_app() -> None:
    by_app = [
        module
        for name, contract in CONTRACTS.items()
        if " look at " in name or " looks at " in name
        for module in contract["source_modules"]
    ]
    expected = [module for module in DOMAIN if not module.startswith("inference.")]
    assert [m for m in expected if not any(m == s or m.startswith(f"{s}.") for s in by_app)] == []
