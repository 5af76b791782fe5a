"""Files of aliases and the console's page: applied whole, or refused with every problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from catalog.aliases import changes, imports
from catalog.models import LanguageModel, ModelAlias
from config.bulk.problems import ImportRefused
from tests.support import factories
from tests.support.console import change, fingerprint, listing, page
from tests.support.database import snapshots
from tests.support.factories import Tenant


@pytest.fixture(autouse=True)
def models(db: None) -> None:
    factories.make_model("acme/falcon")
    factories.make_model("acme/hawk")


def lines(*rows: Any) -> list[bytes]:
    return [
        row if isinstance(row, bytes) else json.dumps({"name": row[0], "targets": row[1]}).encode()
        for row in rows
    ]


@pytest.mark.parametrize("is_operator", [True, False])
def test_an_export_is_imported_again_without_a_change(
    tenant: Tenant, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_operator: bool
) -> None:
    owner = [] if is_operator else [str(tenant.organization.pk)]
    file = tmp_path / "aliases.jsonl"
    file.write_bytes(
        b"\n".join(lines(("gpt-*", ["acme/falcon", "acme/hawk"]), ("a", ["acme/hawk"])))
    )
    before = snapshots.everything()
    call_command("import_aliases", *owner, str(file), "--plan", "--json")
    assert [row["fate"] for row in json.loads(capsys.readouterr().out)["plan"]] == ["create"] * 2
    assert snapshots.everything() == before
    call_command("import_aliases", *owner, str(file), "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["created"], report["unchanged"]) == ({"aliases": 2}, {"aliases": 0})
    assert {row.organization_id for row in ModelAlias.objects.all()} == {
        None if is_operator else tenant.organization.pk
    }
    stored = snapshots.everything()
    again = tmp_path / "again.jsonl"
    call_command("export_aliases", *owner, str(again), "--json")
    assert json.loads(capsys.readouterr().out) == {"exported": {"aliases": 2}}
    call_command("import_aliases", *owner, str(again), "--json")
    assert json.loads(capsys.readouterr().out)["unchanged"] == {"aliases": 2}
    assert {**snapshots.everything(), "config.AuditEntry": None} == {
        **stored, "config.AuditEntry": None,
    }  # fmt: skip
    again.write_bytes(lines(("a", ["acme/falcon"]))[0])
    call_command("import_aliases", *owner, str(again), "--json")
    assert json.loads(capsys.readouterr().out)["updated"] == {"aliases": 1}
    assert ModelAlias.objects.get(name="a").targets == ["acme/falcon"]


def test_a_file_with_a_problem_changes_nothing(tenant: Tenant) -> None:
    rows = lines(
        ("good", ["acme/falcon"]), ("good", ["acme/hawk"]), ("acme/hawk", ["acme/falcon"]),
        ("x", ["no-such"]), ("**", ["acme/falcon"]), ("y", []), b'{"name": "z"}', b"nonsense",
        ("\0", ["\0"]),
    )  # fmt: skip
    before = snapshots.everything()
    with pytest.raises(ImportRefused) as refused:
        imports.apply(tenant.organization.pk, rows)
    assert [text.partition(":")[0] for text in refused.value.problems] == [
        "line 7", "line 8", "line 9", "line 2", "line 3", "line 4", "line 5", "line 6",
    ]  # fmt: skip
    assert snapshots.everything() == before


def test_a_target_that_has_left_the_catalogue_stays(tenant: Tenant) -> None:
    owner = tenant.organization.pk
    imports.apply(owner, lines(("a", ["acme/falcon", "acme/hawk"]), ("b", ["acme/hawk"])))
    LanguageModel.objects.filter(slug="acme/falcon").delete()
    exported = [*imports.export(owner)]
    with snapshots.unchanged():
        imports.apply(owner, exported)
    changes.edit_alias(ModelAlias.objects.get(name="a"), name="c")
    imports.apply(owner, lines(("c", ["acme/falcon"])))
    assert ModelAlias.objects.get(name="c").targets == ["acme/falcon"]
    with snapshots.unchanged(), pytest.raises(ImportRefused):
        imports.apply(owner, lines(("b", ["acme/falcon"])))


@pytest.mark.parametrize("count", [1_001, 10_000, 10_001])
def test_a_file_with_too_many_aliases_is_refused(tenant: Tenant, count: int) -> None:
    before = snapshots.everything()
    with pytest.raises(ImportRefused, match="more than 10,000" if count > 10_000 else "ALIASES is"):
        imports.apply(
            tenant.organization.pk, lines(*((f"a{n}", ["acme/hawk"]) for n in range(count)))
        )
    assert snapshots.everything() == before


def test_commands_refuse_an_unknown_organization(tmp_path: Path) -> None:
    nobody = "00000000-0000-0000-0000-000000000000"
    for command in ("import_aliases", "export_aliases"):
        with pytest.raises(CommandError, match="no such organization"):
            call_command(command, nobody, str(tmp_path / "file"))
    with pytest.raises(CommandError, match="JSON lines"):
        call_command("export_aliases", str(tmp_path / "file.csv"))


def test_the_console_creates_edits_and_deletes_aliases(operator: Client, tenant: Tenant) -> None:
    form = {"name": "fast", "targets": "acme/falcon,acme/hawk", "organization": ""}
    assert operator.post(listing(ModelAlias, "add"), form).status_code == 302
    row = ModelAlias.objects.get()
    assert (row.organization, row.targets) == (None, ["acme/falcon", "acme/hawk"])
    assert change(operator, row, {"name": "quick", "targets": "acme/hawk"}).status_code == 302
    row.refresh_from_db()
    assert (row.name, row.targets) == ("quick", ["acme/hawk"])
    form = {"name": "fast", "targets": "acme/hawk", "organization": str(tenant.organization.pk)}
    assert operator.post(listing(ModelAlias, "add"), form).status_code == 302
    assert ModelAlias.objects.for_organization(tenant.organization.pk).count() == 1
    assert operator.post(page(row, "remove"), {"confirm": "yes"}).status_code in (200, 302)


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"name": "acme/hawk", "targets": "acme/falcon"}, "name"),
        ({"name": "taken", "targets": "acme/falcon"}, "__all__"),
        ({"name": "x", "targets": "no-such"}, "targets"),
    ],
)
def test_the_console_shows_a_refusal(operator: Client, form: dict[str, str], field: str) -> None:
    changes.create_alias(organization_id=None, name="taken", targets=["acme/hawk"])
    before = fingerprint()
    answer = operator.post(listing(ModelAlias, "add"), {**form, "organization": ""})
    assert list(answer.context["adminform"].form.errors) == [field]
    assert fingerprint() == before


def test_a_plan_shows_both_lists_of_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imports.apply(None, lines(("a", ["acme/hawk"])))
    file = tmp_path / "aliases.jsonl"
    file.write_bytes(b"\n".join(lines(("a", ["acme/falcon", "acme/hawk"]))))
    before = snapshots.everything()
    call_command("import_aliases", str(file), "--dry-run")
    said = "update: aliases 'a': Targets: acme/hawk → acme/falcon, acme/hawk\n"
    assert capsys.readouterr().err.endswith(said)
    assert snapshots.everything() == before
