"""Bulk import of end users: a file is applied whole or refused with every problem."""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import Organization
from billing.models import Account
from config.bulk import commands
from config.bulk.cells import write_line
from config.bulk.problems import ImportRefused
from config.bulk.report import Report
from config.bulk.rows import MAX_LINE, is_csv, read_lines
from endusers import imports
from endusers.models import EndUser
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant

CSV = b"user,is_active\r\nalice,true\r\nbob,false\r\ncarol,\r\n"
JSON_LINES = (
    b'{"user": "alice", "is_active": true}\n'
    b'{"user": "bob", "is_active": false}\n'
    b'{"user": "carol"}\n'
)
STORED = [("alice", True), ("bob", False), ("carol", True)]
# Strings that a route registers and that a file must preserve.
STRANGE = [
    "=1+1", "+1", "-1", "@sum", "'=1", "''@x", "'plain", "'", "a,b", 'say "hi"', '"', " around ",
    "   ", "line\nbreak", "carriage\rreturn", "both\r\nends", "tab\there", "#", "{", "true", "ключ",
    "🙂", "\ufeffmark", "a\u2028b", "\x1b[31mred", "é" * 512, "null", "\\N", "\\.", "\u00a0x",
]  # fmt: skip


def load(tenant: Tenant, data: bytes, *, as_csv: bool | None = None, **options: Any) -> Report:
    found, lines = is_csv("-", read_lines(io.BytesIO(data)))
    return imports.apply(
        tenant.organization.pk, lines, as_csv=found if as_csv is None else as_csv, **options
    )


def exported(tenant: Tenant, *, as_csv: bool) -> bytes:
    rows = imports.export(tenant.organization.pk, as_csv=as_csv)
    return b"".join([imports.CSV_HEADER * as_csv, *rows])


def counts(report: Report) -> tuple[int, int, int]:
    assert set(report.created) == set(report.updated) == set(report.unchanged) == {"end_users"}
    kind = "end_users"
    return report.created[kind], report.updated[kind], report.unchanged[kind]


def stored(tenant: Tenant) -> list[tuple[str, bool]]:
    rows = EndUser.objects.for_organization(tenant.organization.pk)
    return list(rows.order_by("user").values_list("user", "is_active"))


def refusal(tenant: Tenant, data: bytes, *, as_csv: bool | None = None) -> list[str]:
    """Returns the problems of a refused file; asserts that the import changed nothing."""
    with snapshots.unchanged(), pytest.raises(ImportRefused) as caught:
        load(tenant, data, as_csv=as_csv)
    return caught.value.problems


@pytest.mark.parametrize(
    "data",
    [
        CSV,
        JSON_LINES,
        b"\xef\xbb\xbf" + CSV,
        b"\xef\xbb\xbf" + JSON_LINES,
        CSV.replace(b"\r\n", b"\n"),
        CSV.removesuffix(b"\r\n"),
        CSV.replace(b"true", b"TRUE").replace(b"false", b"FALSE"),
        CSV.replace(b"bob", b'\n"bob"'),
        JSON_LINES.replace(b"\n", b"\r\n"),
        JSON_LINES.removesuffix(b"\n"),
        b"\n  \n" + JSON_LINES.replace(b"\n", b"\n\n"),
    ],
)
def test_an_import_stores_every_row(tenant: Tenant, data: bytes) -> None:
    report = load(tenant, data)
    assert (counts(report), report.dry_run) == ((3, 0, 0), False)
    assert stored(tenant) == STORED


def test_the_flag_is_optional(tenant: Tenant) -> None:
    assert counts(load(tenant, b"user\nalice\n")) == (1, 0, 0)
    assert stored(tenant) == [("alice", True)]


def test_the_columns_may_have_any_order(tenant: Tenant) -> None:
    assert counts(load(tenant, b"is_active,user\nfalse,alice\n")) == (1, 0, 0)
    assert stored(tenant) == [("alice", False)]


@pytest.mark.parametrize("data", [b"", b"\n", b"user\n", b"user,is_active\r\n"])
def test_a_file_without_rows_changes_nothing(tenant: Tenant, data: bytes) -> None:
    with snapshots.unchanged():
        assert counts(load(tenant, data)) == (0, 0, 0)


@pytest.mark.parametrize("data", [CSV, JSON_LINES])
def test_a_second_import_changes_nothing(tenant: Tenant, data: bytes) -> None:
    load(tenant, CSV)
    with snapshots.unchanged():
        assert counts(load(tenant, data)) == (0, 0, 3)


def test_an_import_updates_only_changed_flags(tenant: Tenant) -> None:
    load(tenant, CSV)
    before = {row.user: row for row in EndUser.objects.all()}
    assert counts(load(tenant, b"user,is_active\nalice,false\nbob,false\ndave,\n")) == (1, 1, 1)
    assert stored(tenant) == [("alice", False), ("bob", False), ("carol", True), ("dave", True)]
    after = {row.user: row for row in EndUser.objects.all()}
    assert after["alice"].updated_at > before["alice"].updated_at
    assert after["alice"].created_at == before["alice"].created_at
    assert after["bob"].updated_at == before["bob"].updated_at


def test_a_row_without_a_flag_keeps_the_stored_flag(tenant: Tenant) -> None:
    load(tenant, CSV)
    assert counts(load(tenant, b"user\nbob\n")) == (0, 0, 1)
    assert counts(load(tenant, b'{"user": "bob"}\n')) == (0, 0, 1)
    assert stored(tenant) == STORED


def test_another_organization_is_not_touched(tenant: Tenant) -> None:
    other = factories.make_tenant("Other")
    load(other, b"user,is_active\nalice,false\n")
    assert counts(load(tenant, CSV)) == (3, 0, 0)
    assert stored(other) == [("alice", False)]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_dry_run_reports_and_changes_nothing(tenant: Tenant, is_first: bool) -> None:
    if not is_first:
        load(tenant, b"user,is_active\nalice,false\nbob,\n")
    with snapshots.unchanged():
        report = load(tenant, CSV, dry_run=True)
        assert report.dry_run is True
        assert counts(report) == ((3, 0, 0) if is_first else (1, 2, 0))


def test_users_are_case_sensitive(tenant: Tenant) -> None:
    assert counts(load(tenant, b"user\nalice\nAlice\n")) == (2, 0, 0)


LONG = "é" * 257
NOT_PLAIN = (
    "user must not have control characters or more than 256 characters: an import creates no such "
    "end user; register it with POST /external-users first"
)
CSV_FAULTS: list[tuple[bytes, list[str]]] = [
    (b"user,is_active\nalice,true\n,true\n", ["line 3: user must not be empty"]),
    *(
        (b"user,is_active\nalice,%s\n" % flag, ["line 2: is_active must be true, false or empty"])
        for flag in (b"yes", b"1", b" true")
    ),
    (b"user,is_active\nalice\n", ["line 2: the line has 1 cells, but the header has 2"]),
    (b"user\nalice,true\n", ["line 2: the line has 2 cells, but the header has 1"]),
    (b"user\n" + b"x" * 513 + b"\n", ["line 2: user must not be longer than 256 characters"]),
    (b"user\na\x00b\n", ["line 2: user must not contain NUL or lone surrogates"]),
    (b"user\n" + f" {LONG}\n".encode(), [f"line 2: {NOT_PLAIN}"]),
    (b'user\n"alice\n"\n', [f"line 2: {NOT_PLAIN}"]),
    (b"user\nalice\nbob\nalice\n", ["line 4: the same user as line 2"]),
    (
        b"user\nalice\n'=1\n=1\nalice\n",
        ["line 4: the same user as line 3", "line 5: the same user as line 2"],
    ),
    (
        b'user\n"a\nb"\n\nc\n"a\nb"\n',
        ["line 6: the same user as line 2", f"line 2: {NOT_PLAIN}", f"line 6: {NOT_PLAIN}"],
    ),
]
STOPPED = "; what follows was not read"
NOT_CSV = "not CSV: a quotation mark or a line end is out of place"
CSV_ENDS: list[tuple[bytes, str]] = [
    *(
        (data, "line 1: the header must name columns among user, is_active")
        for data in (
            b"", b"\n", b"name\nalice\n", b"user,user\n", b"user,is_active,more\n", b"User\n",
        )
    ),
    (b"user\nalice\n\xff\n", "line 3: not UTF-8"),
    (b"user\n\xe9\n", "line 2: not UTF-8"),
    ("user\nalice\n".encode("utf-16"), "line 1: not UTF-8"),
    (b"user\n" + b"x" * (MAX_LINE + 1), "line 2: longer than 65536 bytes"),
    (b'user\nalice\n"bob\ncarol\n', f"line 3: {NOT_CSV}"),
    (b'user\n"al"ice\n', f"line 2: {NOT_CSV}"),
    (b"user\nalice\rbob\n", f"line 2: {NOT_CSV}"),
]  # fmt: skip
JSON_FAULTS: list[tuple[bytes, str]] = [
    (b'{"user": ""}', "user must not be empty"),
    (b'{"user": 5}', "Expected `str`, got `int` - at `$.user`"),
    (b'{"user": null}', "Expected `str`, got `null` - at `$.user`"),
    (b"{}", "Object missing required field `user`"),
    (b'{"user": "x", "is_active": "true"}', "Expected `bool`, got `str` - at `$.is_active`"),
    (b'{"user": "x", "is_active": 1}', "Expected `bool`, got `int` - at `$.is_active`"),
    (b'{"user": "x", "is_active": null}', "Expected `bool`, got `null` - at `$.is_active`"),
    (b'{"user": "x", "note": 1}', "Object contains unknown field `note`"),
    (b'{"user": "x", "\\u001b[2J": 1}', "Object contains unknown field `\ufffd[2J`"),
    (b'{"user": "x", "user": "y"}', "a key is named twice in one object"),
    (b'{"user": "\\u0000"}', "user must not contain NUL or lone surrogates"),
    (b'{"user": "\\ud800"}', "user must not contain NUL or lone surrogates"),
    (b'["x"]', "Expected `object`, got `array`"),
    (b'"x"', "Expected `object`, got `str`"),
    (b'{"user": "x"', "not JSON: Expecting ',' delimiter (column 13)"),
    (b'{"user": "x"}{}', "not JSON: Extra data (column 14)"),
    (b"[" * 60_000, "nested too deeply"),
    (b'{"user": "alice"}', "the same user as line 1"),
]


@pytest.mark.parametrize(("data", "problems"), CSV_FAULTS)
def test_a_problem_in_csv_is_reported_with_its_line(
    tenant: Tenant, data: bytes, problems: list[str]
) -> None:
    load(tenant, b"user\nbob\n")
    assert refusal(tenant, data) == problems


@pytest.mark.parametrize(("data", "problem"), CSV_ENDS)
def test_csv_that_cannot_be_read_to_the_end_is_refused(
    tenant: Tenant, data: bytes, problem: str
) -> None:
    assert refusal(tenant, data, as_csv=True) == [problem + STOPPED]


@pytest.mark.parametrize(("line", "problem"), JSON_FAULTS)
def test_a_problem_in_json_lines_is_reported_with_its_line(
    tenant: Tenant, line: bytes, problem: str
) -> None:
    data = b'{"user": "alice"}\n\n' + line + b'\n{"user": "zoe"}\n'
    assert refusal(tenant, data) == [f"line 3: {problem}"]


def test_json_lines_that_are_not_utf_8_are_refused(tenant: Tenant) -> None:
    data = b'{"user": "alice"}\n{"user": ""}\n{"user": "\xff"}\n'
    assert refusal(tenant, data) == [
        "line 2: user must not be empty",
        f"line 3: not UTF-8{STOPPED}",
    ]


def test_all_problems_are_reported_together(tenant: Tenant) -> None:
    data = b"user,is_active\nalice,\n,\nbob,no\nalice,true\n"
    assert refusal(tenant, data) == [
        "line 3: user must not be empty",
        "line 4: is_active must be true, false or empty",
        "line 5: the same user as line 2",
    ]


def test_at_most_100_problems_are_reported(tenant: Tenant) -> None:
    data = b"user\n" + b"alice\n" * 60 + b'""\n' * 60
    problems = refusal(tenant, data)
    assert problems[0] == "line 62: user must not be empty"
    assert problems[59] == "line 121: user must not be empty"
    assert problems[60] == "line 3: the same user as line 2"
    assert problems[99] == "line 42: the same user as line 2"
    assert problems[100:] == ["… and 19 more"]


@pytest.mark.parametrize("as_csv", [True, False])
def test_an_export_is_imported_unchanged(tenant: Tenant, as_csv: bool) -> None:
    users = [EndUser(organization=tenant.organization, user=user) for user in STRANGE]
    users[0].is_active = False
    EndUser.objects.bulk_create(users)
    data = exported(tenant, as_csv=as_csv)
    with snapshots.unchanged():
        assert counts(load(tenant, data)) == (0, 0, len(STRANGE))


@pytest.mark.parametrize("as_csv", [True, False])
@pytest.mark.parametrize("user", [LONG, "é" * 512, "line\nbreak", "\x1b[2J", "a\tb", "a\x85b"])
def test_an_import_creates_no_user_that_end_users_refuses(
    tenant: Tenant, as_csv: bool, user: str
) -> None:
    other = factories.make_tenant("Other")
    for name in ("alice", user):
        EndUser.objects.register(organization_id=other.organization.pk, user=name)
    data = exported(other, as_csv=as_csv)
    assert refusal(tenant, data, as_csv=as_csv) == [f"line {2 + as_csv}: {NOT_PLAIN}"]
    assert counts(load(other, data)) == (0, 0, 2)
    assert counts(load(other, data.replace(b"true", b"false"))) == (0, 2, 0)
    assert stored(other) == sorted([("alice", False), (user, False)])


def test_strings_of_both_routes_survive_export_and_import(tenant: Tenant) -> None:
    client = factories.client(tenant.management_key)
    for route, user in (
        ("/api/v1/end-users", " around "),
        ("/api/v1/end-users", "=SUM(A1)"),
        ("/api/v1/external-users", "é" * 512),
        ("/api/v1/external-users", "line\nbreak"),
    ):
        assert client.post(route, {"user": user}, format="json").status_code == 201
    for as_csv in (True, False):
        assert counts(load(tenant, exported(tenant, as_csv=as_csv))) == (0, 0, 4)


def test_an_export_lists_the_oldest_first(tenant: Tenant) -> None:
    for user in ("bob", "alice"):
        EndUser.objects.register(organization_id=tenant.organization.pk, user=user)
    assert list(imports.export(tenant.organization.pk, as_csv=True)) == [
        b'"bob","true"\r\n',
        b'"alice","true"\r\n',
    ]
    assert list(imports.export(tenant.organization.pk, as_csv=False)) == [
        b'{"user":"bob","is_active":true}\n',
        b'{"user":"alice","is_active":true}\n',
    ]


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1), max_size=5))
def test_a_written_line_of_csv_is_read_back(values: list[str]) -> None:
    data = b"".join(write_line([value, "true"]).encode() for value in values)
    lines = (line.decode() for line in read_lines(io.BytesIO(data)))
    assert [row[0] for row in csv.reader(lines, strict=True)] == values


def test_an_unescaped_cell_is_imported_unchanged(tenant: Tenant) -> None:
    load(tenant, b"user\n=1\n'+2\n")
    assert stored(tenant) == [("+2", True), ("=1", True)]


def test_imports_of_one_organization_run_one_after_another(
    transactional_db: None, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    users = [f"user-{number}" for number in range(500)]

    def run(names: list[str], flag: str) -> Callable[[], Report]:
        data = "user,is_active\n" + "".join(f"{name},{flag}\n" for name in names)
        return lambda: load(tenant, data.encode())

    reports = together(run(users, "true"), run(users[::-1], "false"))
    assert sorted(counts(report) for report in reports) == [(0, 500, 0), (500, 0, 0)]


def test_an_import_does_not_block_admissions_or_edits_of_the_organization(
    transactional_db: None, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    account = Account.objects.get(organization=tenant.organization, kind="credits")

    def admit() -> int:
        # Locks the rows that an admission locks, in the same order.
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM billing_account WHERE id = %s FOR NO KEY UPDATE NOWAIT",
                [account.pk],
            )
            cursor.execute(
                "SELECT id FROM accounts_organization WHERE id = %s FOR SHARE NOWAIT",
                [tenant.organization.pk],
            )
            return cursor.rowcount

    def change() -> bool:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            return Organization.objects.get(pk=tenant.organization.pk).edit(name="Renamed")

    with transaction.atomic():
        assert counts(load(tenant, CSV)) == (3, 0, 0)
        assert together(admit) == [1]
        assert together(change) == [True]
    assert stored(tenant) == STORED


class Reader(io.StringIO):
    """Records for every write whether a transaction is open."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for: list[bool] = []

    def write(self, text: str) -> int:
        self.waited_for.append(connection.in_atomic_block)
        return super().write(text)


def test_a_plan_is_printed_after_its_transaction(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limit is so low that most of the plan is spooled to a file.
    monkeypatch.setattr(commands, "_SPOOLED_BYTES", 64)
    tenant = factories.make_tenant()
    file = tmp_path / "users.jsonl"
    users = [f"line\u2028break {number} ключ" for number in range(50)]
    file.write_text("".join(json.dumps({"user": user}) + "\n" for user in users))
    err = Reader()
    call_command(
        "import_end_users", str(tenant.organization.pk), str(file), "--plan",
        stdout=io.StringIO(), stderr=err,
    )  # fmt: skip
    assert err.getvalue().splitlines() == [f"create: end_users {user!r}" for user in users]
    assert set(err.waited_for) == {False}


def run(*arguments: str, command: str = "import_end_users") -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command(command, *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def export(*arguments: str) -> tuple[str, str]:
    return run(*arguments, command="export_end_users")


def printed(created: int, updated: int, unchanged: int) -> dict[str, Any]:
    """Returns the counts that the command prints as JSON."""
    numbers = {"created": created, "updated": updated, "unchanged": unchanged}
    return {name: {"end_users": number} for name, number in numbers.items()}


def test_the_command_prints_one_json_object(tenant: Tenant, tmp_path: Path) -> None:
    key = str(tenant.organization.pk)
    file = tmp_path / "users.csv"
    file.write_bytes(CSV)
    dry = {**printed(3, 0, 0), "dry_run": True}
    assert json.loads(run(key, str(file), "--dry-run", "--json")[0]) == dry
    assert stored(tenant) == []
    assert json.loads(run(key, str(file), "--json")[0]) == dry | {"dry_run": False}
    out, err = run(key, str(file), "--json")
    assert json.loads(out) == {**printed(0, 0, 3), "dry_run": False}
    assert (out.count("\n"), err) == (1, "")


def test_the_command_lists_its_plan_and_changes_nothing(tenant: Tenant, tmp_path: Path) -> None:
    load(tenant, b"user,is_active\nalice,false\nbob,false\n")
    key = str(tenant.organization.pk)
    file = tmp_path / "users.jsonl"
    file.write_bytes(JSON_LINES)
    with snapshots.unchanged():
        report = json.loads(run(key, str(file), "--plan", "--json")[0])
        assert report == {
            **printed(1, 1, 1),
            "dry_run": True,
            "plan": [
                {
                    "kind": "end_users",
                    "row": "alice",
                    "fate": "update",
                    "changes": [{"column": "state", "old": "inactive", "new": "active"}],
                },
                {"kind": "end_users", "row": "carol", "fate": "create"},
            ],
        }
        out, err = run(key, str(file), "--plan")
        assert err == (
            "update: end_users 'alice': state: inactive → active\ncreate: end_users 'carol'\n"
        )
        assert out.splitlines()[-1] == "dry_run: yes"


@pytest.mark.parametrize("data", [CSV, JSON_LINES])
def test_the_command_reads_standard_input(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    out, _ = run(str(tenant.organization.pk), "-", "--json")
    assert json.loads(out)["created"] == {"end_users": 3}
    assert stored(tenant) == STORED


@pytest.mark.parametrize(
    ("name", "data", "is_read"),
    [
        ("users.CSV", CSV, True),
        ("users.csv", JSON_LINES, False),
        ("users.jsonl", CSV, False),
        ("users.ndjson", JSON_LINES, True),
        ("users.txt", CSV, True),
        ("users", JSON_LINES, True),
    ],
)
def test_the_extension_takes_precedence_over_the_content(
    tenant: Tenant, tmp_path: Path, name: str, data: bytes, is_read: bool
) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    if is_read:
        run(str(tenant.organization.pk), str(file))
        assert stored(tenant) == STORED
    else:
        with pytest.raises(CommandError):
            run(str(tenant.organization.pk), str(file))
        assert stored(tenant) == []


def test_the_command_refuses_with_code_1(tenant: Tenant, tmp_path: Path) -> None:
    file = tmp_path / "users.csv"
    file.write_bytes(b"user\nalice\nalice\n")
    missing = str(tmp_path / "missing.csv")
    key = str(tenant.organization.pk)
    with snapshots.unchanged():
        for organization, name, message in (
            (key, str(file), "line 3: the same user as line 2"),
            (key, missing, f"{missing}: No such file or directory"),
            (str(uuid.uuid4()), str(file), "There is no such organization."),
        ):
            with pytest.raises(CommandError) as caught:
                run(organization, name, "--json")
            assert (caught.value.returncode, str(caught.value)) == (1, message)


def test_the_import_command_reads_the_output_of_the_export_command(
    tenant: Tenant, tmp_path: Path
) -> None:
    load(tenant, CSV)
    key = str(tenant.organization.pk)
    for name in ("users.csv", "users.jsonl"):
        file = tmp_path / name
        assert json.loads(export(key, str(file), "--json")[0]) == {"exported": {"end_users": 3}}
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_bytes().startswith(imports.CSV_HEADER) is (name == "users.csv")
        assert json.loads(run(key, str(file), "--json")[0])["unchanged"] == {"end_users": 3}


def test_the_export_command_writes_to_standard_output(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tenant, b"user\nalice\n")
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output))
    assert export(str(tenant.organization.pk), "-") == ("", "1 end_users\n")
    assert output.getvalue() == b'{"user":"alice","is_active":true}\n'


def test_the_export_command_refuses(tenant: Tenant, tmp_path: Path) -> None:
    key = str(tenant.organization.pk)
    file = str(tmp_path / "users.csv")
    nowhere = str(tmp_path / "missing" / "users.csv")
    for arguments, code, message in (
        ((str(uuid.uuid4()), file), 1, "There is no such organization."),
        ((key, nowhere), 1, f"{nowhere}: No such file or directory"),
        ((key, "-", "--json"), 2, "--json needs a FILE: standard output has the rows."),
    ):
        with pytest.raises(CommandError) as caught:
            export(*arguments)
        assert (caught.value.returncode, str(caught.value)) == (code, message)
    assert list(tmp_path.iterdir()) == []
