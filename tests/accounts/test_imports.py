"""``import_members``, ``import_keys`` and ``create_api_key --for-each``."""

from __future__ import annotations

import csv
import functools
import io
import json
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.imports import import_keys, import_members
from accounts.models import ApiKey, Member, WorkspaceMember
from accounts.rotation import rotate_key
from tests.support import factories
from tests.support.database import snapshots
from tests.support.database.locks import at_once
from tests.support.factories import Tenant
from tests.support.governance import status_of
from tests.support.processes import MANAGE, environment

SECRET = "an-old-secret-of-another-gateway"


def run(command: str, *arguments: object) -> tuple[dict[str, Any], str]:
    out, err = io.StringIO(), io.StringIO()
    call_command(command, *map(str, arguments), "--json", stdout=out, stderr=err)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found, err.getvalue()


def refuse(command: str, *arguments: object) -> list[str]:
    with snapshots.unchanged(), pytest.raises(CommandError) as caught:
        run(command, *arguments)
    assert caught.value.returncode == 1
    return str(caught.value).splitlines()


def unaudited() -> dict[str, list[str]]:
    return {key: rows for key, rows in snapshots.everything().items() if "Audit" not in key}


def write(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def counts(kind: str, created: int = 0, updated: int = 0, unchanged: int = 0) -> dict[str, Any]:
    numbers = {"created": created, "updated": updated, "unchanged": unchanged}
    return {name: {kind: number} for name, number in numbers.items()} | {"dry_run": False}


def test_members_are_created_and_changed(tenant: Tenant, tmp_path: Path) -> None:
    owner = tenant.organization
    team = owner.workspaces.create(name="Team", slug="team")
    file = write(
        tmp_path,
        "email,name,role,workspace\n"
        "ada@example.com,Ada Lovelace King,admin,team\n"
        f"bob@example.com,Bob,,{team.pk}\n",
    )
    assert run("import_members", owner.pk, file)[0] == counts("members", created=2)
    ada, bob = Member.objects.order_by("email")
    assert (ada.first_name, ada.last_name, ada.role) == ("Ada", "Lovelace King", "admin")
    assert (bob.first_name, bob.last_name, bob.role) == ("Bob", None, "member")
    assert WorkspaceMember.objects.filter(workspace=team).count() == 2
    before = unaudited()
    assert run("import_members", owner.pk, file)[0] == counts("members", unchanged=2)
    assert unaudited() == before
    changed = write(tmp_path, '{"email": "Ada@example.com", "role": "org:member"}\n', "rows.jsonl")
    run("import_members", owner.pk, changed, "--plan")
    assert Member.objects.get(email="ada@example.com").role == "admin"
    out = io.StringIO()
    call_command("import_members", owner.pk, str(changed), "--plan", stdout=out, stderr=out)
    assert "update: members 'Ada@example.com': role: admin → member\n" in out.getvalue()
    # Nothing is written as Python writes it.
    assert "created: 0 members\nupdated: 1 members\n" in out.getvalue()
    assert "{" not in out.getvalue()
    assert run("import_members", owner.pk, changed)[0] == counts("members", updated=1)


def test_a_file_of_members_is_refused_as_a_whole(tenant: Tenant, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "email,first_name,name,role,workspace\n"
        "ada,Ada,,,\n"
        "bob@example.com,Bob,Bob B,boss,nowhere\n"
        "BOB@example.com,,,,\n",
    )
    assert refuse("import_members", tenant.organization.pk, file) == [
        "line 4: email: the same as in line 3",
        "line 2: email: 'ada' is no address",
        "line 3: name: leave it out beside first_name and last_name",
        "line 3: role: must be admin or member",
        "line 3: workspace: there is none with the slug or id 'nowhere'; there are default",
    ]
    file = write(tmp_path, "mail\nada@example.com\n")
    [refusal] = refuse("import_members", tenant.organization.pk, file)
    assert refusal == (
        "line 1: the header must name columns among email, first_name, last_name, name, role, "
        "workspace; what follows was not read"
    )


def test_keys_of_a_team_work_and_are_never_printed(tenant: Tenant, tmp_path: Path) -> None:
    owner = tenant.organization
    team = owner.workspaces.create(name="Team", slug="team")
    write(tmp_path, "email\nada@example.com\n", "members.csv")
    run("import_members", owner.pk, tmp_path / "members.csv")
    file = write(
        tmp_path,
        f"name,email,workspace,limit,key\nada,ada@example.com,team,12.5,\nbob,,,,\nold,,,,{SECRET}\n",
    )
    output = tmp_path / "keys.csv"
    output.write_text("")
    output.chmod(0o644)
    report, err = run("import_keys", owner.pk, file, "--output", output)
    assert report == counts("keys", created=3)
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    [ada, bob] = csv.DictReader(io.StringIO(output.read_text()))
    assert (ada["name"], ada["email"], ada["workspace"]) == ("ada", "ada@example.com", "team")
    stored = ApiKey.objects.get(name="ada")
    assert (stored.digest, stored.limit_nano) == (ada["hash"], 12_500_000_000)
    assert (stored.workspace, stored.creator) == (team, Member.objects.get())
    assert bob["workspace"] == "default"
    assert [status_of(key) for key in (ada["key"], bob["key"], SECRET)] == [200, 200, 200]
    assert ApiKey.objects.get(name="old").label == "an-…way"
    for secret in (ada["key"], bob["key"], SECRET):
        assert secret not in err + json.dumps(report)
    # A second run changes nothing and loses nothing of the output.
    text = output.read_text()
    assert run("import_keys", owner.pk, file, "--output", output)[0] == counts("keys", unchanged=3)
    assert output.read_text() == text
    write(tmp_path, "name,limit\nada,20\neve,\n")
    report, _ = run("create_api_key", owner.pk, "--for-each", file, "--output", output)
    assert report == counts("keys", created=1, updated=1)
    assert output.read_text().startswith(text)
    assert [row["name"] for row in csv.DictReader(io.StringIO(output.read_text()))] == [
        "ada", "bob", "eve",
    ]  # fmt: skip
    assert ApiKey.objects.get(name="ada").limit_nano == 20_000_000_000


_IN_LITTLE_ROOM = """
import resource, sys
from config.local import entry
# The bytecode of what is imported now would be cut off too, and break every later process.
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
entry.run(["manage.py", *sys.argv[2:]])
"""


def test_a_full_disk_takes_no_part_of_the_new_secrets(
    transactional_db: None, tmp_path: Path
) -> None:
    owner = factories.make_tenant().organization
    output = tmp_path / "keys.csv"
    file = write(tmp_path, "name\nada\n")
    run("import_keys", owner.pk, file, "--output", output)
    before = output.read_bytes()
    write(tmp_path, "name\nada\nbob\n")
    room = str(len(before) + 20)
    refused = subprocess.run(
        [
            *(sys.executable, "-c", _IN_LITTLE_ROOM, room),
            *("import_keys", str(owner.pk), str(file), "--output", str(output)),
        ],
        cwd=MANAGE.parent,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert f"{output}: File too large. No key was created." in refused.stderr
    assert output.read_bytes() == before
    assert not ApiKey.objects.filter(name="bob").exists()
    run("import_keys", owner.pk, file, "--output", output)
    rows = csv.DictReader(io.StringIO(output.read_text()))
    assert [row["name"] for row in rows] == ["ada", "bob"]


def test_new_secrets_stand_in_cells_that_every_spreadsheet_reads(
    tenant: Tenant, tmp_path: Path
) -> None:
    file = write(tmp_path, 'name\nBüro; Süd\n"Ann, ""laptop"""\n=1+1;@x\n')
    output = tmp_path / "keys.csv"
    run("import_keys", tenant.organization.pk, file, "--output", output)
    header, *lines = output.read_bytes().decode().split("\r\n")
    assert header == "name,email,workspace,hash,key"
    assert [line.rpartition(',"default",')[0] for line in lines] == [
        '"Büro; Süd",', '"Ann, ""laptop""",', '"\'=1+1;\'@x",', "",
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(output.read_text())))
    assert [list(row) for row in rows] == [header.split(",")] * 3
    assert [status_of(row["key"]) for row in rows] == [200] * 3


def test_a_file_of_keys_is_refused_as_a_whole(tenant: Tenant, tmp_path: Path) -> None:
    owner = tenant.organization
    factories.make_tenant("Other")
    write(tmp_path, f"name,key\nold,{SECRET}\n")
    run("import_keys", owner.pk, tmp_path / "rows.csv")
    file = write(
        tmp_path,
        "name,email,workspace,limit,key\n"
        f"new,,,,{SECRET}\n"
        "old,,,,another-secret-of-20-characters\n"
        "short,,,,too-short\n"
        f"typo,,,,sk-cw-{'0' * 49}\n"
        f"taken,,,,{tenant.api_key}\n"
        "ada,nobody@example.com,nowhere,-1,\n",
    )
    output = tmp_path / "keys.csv"
    malformed = (
        "key: must have 20 to 512 visible ASCII characters and no comma, and an own one its "
        "checksum"
    )
    assert refuse("import_keys", owner.pk, file, "--output", output) == [
        "line 2: key: another key has this secret already",
        "line 3: key: the key of this name has another secret; use another name",
        f"line 4: {malformed}",
        f"line 5: {malformed}",
        "line 6: key: another key has this secret already",
        "line 7: limit: must be USD from 0 to 1000000000, with at most 9 decimals",
        "line 7: workspace: there is none with the slug or id 'nowhere'; there are default",
        "line 7: email: there is no member 'nobody@example.com'; import the members first",
    ]
    assert not output.exists()
    file = write(tmp_path, "name\nada\n")
    assert refuse("import_keys", owner.pk, file) == [
        "--output: name a file for the secrets of the keys: not every row has a key"
    ]
    missing = tmp_path / "missing" / "keys.csv"
    assert refuse("import_keys", owner.pk, file, "--output", missing) == [
        f"{missing}: No such file or directory. No key was created."
    ]
    report, _ = run("import_keys", owner.pk, file, "--dry-run")
    assert (report["created"], report["dry_run"]) == ({"keys": 1}, True)
    assert not ApiKey.objects.filter(name="ada").exists()


def test_the_former_secret_of_a_key_is_told_from_that_of_another_one(
    tenant: Tenant, tmp_path: Path
) -> None:
    owner = tenant.organization
    deleted = "the-secret-of-a-deleted-key"
    file = write(tmp_path, f"name,key\nold,{SECRET}\ngone,{deleted}\n")
    run("import_keys", owner.pk, file)
    ApiKey.objects.get(name="gone").revoke()
    _, secret = rotate_key(ApiKey.objects.get(name="old"), overlap=60)
    assert refuse("import_keys", owner.pk, file) == [
        "line 2: key: this secret was replaced by a rotation of the key; leave it out",
        "line 3: key: this secret belongs to a deleted key, and works no more",
    ]
    write(tmp_path, f"name,key\nnew,{SECRET}\n")
    taken = "line 2: key: another key has this secret already"
    assert refuse("import_keys", owner.pk, file) == [taken]
    write(tmp_path, f"name,key\nold,{secret.reveal()}\n")
    assert run("import_keys", owner.pk, file)[0] == counts("keys", unchanged=1)


@pytest.mark.parametrize(
    "limit",
    [
        "1e999999", "1e9999999", "-1e9999999", "1e-9999999", "1e999999999999999999",
        "1e99999999999999999999", "NaN", "sNaN", "Infinity", "0.0000000001", "1000000000.1",
    ],
)  # fmt: skip
def test_a_limit_of_any_exponent_is_a_problem_of_its_line(
    tenant: Tenant, tmp_path: Path, limit: str
) -> None:
    problem = "limit: must be USD from 0 to 1000000000, with at most 9 decimals"
    file = write(tmp_path, f"name,limit\nada,{limit}\nbob,5\n")
    found = refuse("import_keys", tenant.organization.pk, file, "--output", tmp_path / "keys.csv")
    assert found == [f"line 2: {problem}"]
    assert not ApiKey.objects.filter(name="ada").exists()


@pytest.mark.parametrize(("limit", "nano"), [("0e999999999", 0), ("1E3", 10**12), ("-0", 0)])
def test_a_limit_may_have_an_exponent(
    tenant: Tenant, tmp_path: Path, limit: str, nano: int
) -> None:
    file = write(tmp_path, f"name,limit\nada,{limit}\n")
    run("import_keys", tenant.organization.pk, file, "--output", tmp_path / "keys.csv")
    assert ApiKey.objects.get(name="ada").limit_nano == nano


@pytest.mark.parametrize(
    ("key", "is_taken"),
    [("k" * 19, False), ("k" * 20, True), ("~" * 512, True), ("k" * 513, False)]
    + [("k" * 20 + odd, False) for odd in (" k", "é", "\x7f", ",")],
)
def test_an_existing_secret_has_a_length_and_visible_characters(
    tenant: Tenant, tmp_path: Path, key: str, is_taken: bool
) -> None:
    file = write(tmp_path, json.dumps({"name": "old", "key": key}), "rows.jsonl")
    if is_taken:
        run("import_keys", tenant.organization.pk, file)
        assert status_of(key) == 200
    else:
        [problem] = refuse("import_keys", tenant.organization.pk, file)
        assert problem.startswith("line 1: key: must have 20 to 512")
        assert key not in problem


@pytest.mark.parametrize("kind", ["members", "keys"])
def test_a_slow_input_locks_nothing(tenant: Tenant, kind: str) -> None:
    organization_id = tenant.organization.pk

    def read_slowly() -> Iterator[bytes]:
        yield b"email\n" if kind == "members" else b"name,key\n"
        assert not any("FOR NO KEY UPDATE" in query["sql"] for query in found.captured_queries)
        yield b"ada@example.com\n" if kind == "members" else f"ada,{SECRET}\n".encode()

    with CaptureQueriesContext(connection) as found:
        if kind == "members":
            report = import_members(organization_id, read_slowly(), as_csv=True)
        else:
            report = import_keys(organization_id, read_slowly(), as_csv=True, output=None)
    assert report.created == {kind: 1}
    assert any("FOR NO KEY UPDATE" in query["sql"] for query in found.captured_queries)


def import_at_once(folder: Path, owners: list[Any], text: str) -> list[Any]:
    """Imports one file of keys at once for each owner; returns the reports and the refusals."""
    file = write(folder, text)

    def load(number: int) -> Any:
        try:
            output = folder / f"secrets-{number}.csv"
            return run("import_keys", owners[number].pk, file, "--output", output)[0]
        except CommandError as exc:
            return str(exc)

    ids = ", ".join(f"'{owner.pk}'" for owner in owners)
    return at_once(
        *(functools.partial(load, number) for number in range(len(owners))),
        held=f"SELECT 1 FROM accounts_organization WHERE id IN ({ids}) FOR UPDATE",
    )


def test_of_two_files_of_keys_at_once_the_second_changes_nothing(
    transactional_db: None, tmp_path: Path
) -> None:
    owner = factories.make_tenant().organization
    before = ApiKey.objects.count()
    found = import_at_once(tmp_path, [owner] * 2, f"name,key\nold,{SECRET}\nnew,\n")
    assert sorted(found, key=str) == [counts("keys", unchanged=2), counts("keys", created=2)]
    assert ApiKey.objects.count() == before + 2
    [lines] = [path.read_text().splitlines() for path in tmp_path.glob("secrets-*.csv")]
    secret = lines[1].rpartition(",")[2].strip('"')
    assert (len(lines), status_of(secret), status_of(SECRET)) == (2, 200, 200)


def test_of_two_organizations_at_once_one_gets_an_existing_secret(
    transactional_db: None, tmp_path: Path
) -> None:
    owners = [factories.make_tenant(name).organization for name in ("One", "Other")]
    before = ApiKey.objects.count()
    found = import_at_once(tmp_path, owners, f"name,key\nold,{SECRET}\n")
    [refused] = [each for each in found if isinstance(each, str)]
    assert "line 2: key: another key has this secret already" in refused
    assert SECRET not in refused
    assert counts("keys", created=1) in found
    assert (ApiKey.objects.count(), status_of(SECRET)) == (before + 1, 200)


@pytest.fixture
def team(tenant: Tenant) -> Tenant:
    """Members and keys whose names look like formulas, and ones with nothing but a name."""
    owner = tenant.organization
    ada = Member.objects.create(
        organization=owner, email="+ada@example.com", first_name="=A;+1", last_name="", role="admin"
    )
    Member.objects.create(organization=owner, email="bob@example.com")
    gone = Member.objects.create(organization=owner, email="gone@example.com")
    gone.remove()
    research = owner.workspaces.create(name="Research", slug="research")
    closed = owner.workspaces.create(name="Closed", slug="closed")
    for name, workspace, fields in (
        ('\'=1+1;@x, "ü"', research, {"creator": ada, "limit_nano": 12_500_000_000}),
        ("-5", research, {"limit_nano": 0}),
        ("paused", closed, {"disabled": True, "limit_nano": 10**18}),
        ("deleted", research, {}),
        ("Boss", research, {"is_management": True}),
    ):
        ApiKey.objects.create_key(workspace=workspace, name=name, **fields)
    closed.close()
    ApiKey.objects.get(name="deleted").revoke()
    rotate_key(ApiKey.objects.get(name="-5"), overlap=60)
    return tenant


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize(("kind", "number"), [("members", 2), ("keys", 4)])
def test_an_export_is_imported_unchanged(
    team: Tenant, tmp_path: Path, kind: str, number: int, ending: str
) -> None:
    owner, file = team.organization, tmp_path / f"rows.{ending}"
    assert run(f"export_{kind}", owner.pk, file)[0] == {"exported": {kind: number}}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = unaudited()
    assert run(f"import_{kind}", owner.pk, file)[0] == counts(kind, unchanged=number)
    assert unaudited() == before
    # Another organization gets the same rows from it, and gives them back.
    other = factories.make_tenant("Other").organization
    other.workspaces.create(name="Research", slug="research")
    other_file, secrets = tmp_path / f"other.{ending}", tmp_path / "secrets.csv"
    ApiKey.objects.get(name="paused").edit(workspace_id=owner.workspaces.get(slug="default").pk)
    run("export_members", owner.pk, tmp_path / f"members.{ending}")
    run("export_keys", owner.pk, tmp_path / f"keys.{ending}")
    run("import_members", other.pk, tmp_path / f"members.{ending}")
    run("import_keys", other.pk, tmp_path / f"keys.{ending}", "--output", secrets)
    run(f"export_{kind}", other.pk, other_file)
    assert other_file.read_bytes() == (tmp_path / f"{kind}.{ending}").read_bytes()


def test_an_export_has_what_an_import_reads(team: Tenant, tmp_path: Path) -> None:
    owner = team.organization
    ApiKey.objects.get(name="inference").edit(name="=cmd")
    run("export_members", owner.pk, tmp_path / "members.jsonl")
    run("export_members", owner.pk, tmp_path / "members.csv")
    run("export_keys", owner.pk, tmp_path / "keys.jsonl")
    run("export_keys", owner.pk, tmp_path / "keys.csv")
    [ada, bob] = map(json.loads, (tmp_path / "members.jsonl").read_text().splitlines())
    assert ada == {
        "email": "+ada@example.com",
        "first_name": "=A;+1",
        "last_name": "",
        "role": "admin",
    }
    assert bob == {"email": "bob@example.com", "role": "member"}
    assert (tmp_path / "members.csv").read_bytes().decode() == (
        "\ufeffemail,first_name,last_name,role\r\n"
        '"\'+ada@example.com","\'=A;\'+1",,"admin"\r\n'
        '"bob@example.com",,,"member"\r\n'
    )
    assert [*map(json.loads, (tmp_path / "keys.jsonl").read_text().splitlines())] == [
        {"name": "=cmd", "workspace": "default"},
        {
            "name": '\'=1+1;@x, "ü"',
            "email": "+ada@example.com",
            "workspace": "research",
            "limit": "12.5",
        },
        {"name": "paused", "limit": "1000000000"},
        {"name": "-5", "workspace": "research", "limit": "0"},
    ]
    assert (tmp_path / "keys.csv").read_bytes().decode() == (
        "\ufeffname,email,workspace,limit\r\n"
        '"\'=cmd",,"default",\r\n'
        '"\'\'=1+1;\'@x, ""ü""","\'+ada@example.com","research","12.5"\r\n'
        '"paused",,,"1000000000"\r\n'
        '"-5",,"research","0"\r\n'
    )


def test_keys_of_one_name_are_not_exported(team: Tenant, tmp_path: Path) -> None:
    owner, file = team.organization, tmp_path / "keys.csv"
    workspace = owner.workspaces.get(slug="research")
    for name in ("paused", "-5", "-5"):
        ApiKey.objects.create_key(workspace=workspace, name=name)
    file.write_text("as it was")
    [refusal] = refuse("export_keys", owner.pk, file)
    assert refusal == (
        "Several keys have the same name: 'paused', '-5'; rename all but one of each. "
        "Nothing was written."
    )
    assert file.read_text() == "as it was"
    for number in range(21):
        for _ in range(2):
            ApiKey.objects.create_key(workspace=workspace, name=f"same {number}")
    [refusal] = refuse("export_keys", owner.pk, file)
    assert "'same 17' and others; rename" in refusal
    [refusal] = refuse("export_members", uuid.uuid4(), file)
    assert refusal == "There is no such organization."


def test_a_single_key_takes_no_output(tenant: Tenant, tmp_path: Path) -> None:
    with snapshots.unchanged(), pytest.raises(CommandError) as caught:
        run("create_api_key", tenant.organization.pk, "--output", tmp_path / "keys.csv")
    assert caught.value.returncode == 2


def test_a_key_that_never_existed_is_refused(tenant: Tenant) -> None:
    for key in ("short", SECRET, f"{SECRET},{SECRET}", f"sk-cw-{'0' * 49}", "x" * 513):
        assert status_of(key) == 401
