"""Import and export of bulk files in the console: first a preview, then the import.

The server does not store the file between the two. The preview page carries it, signed for the
operator who sent it. An import writes one entry to the audit log, whatever the number of rows.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core import signing
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase

from config.api.errors import Forbidden, GatewayError
from config.audit import context as audit
from config.audit.context import actor_of
from config.bulk.problems import ImportRefused
from config.bulk.report import ImportPlan, Report, RowChange, RowListener, RowOutcome
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.models import ChangeSet
from config.changes.pages import PageOperation
from config.changes.proposals import IMPORT, Proposal, read_sealed
from config.console.formatting import list_url, render_page
from config.console.lists.downloads import stream_file
from config.database.patience import take_time

MAX_BYTES: Final = 5 * 1024 * 1024
SHOWN: Final = 500
_LIFETIME: Final = 3600
_PLAN: Final = "what the file changes"
_FILE: Final = (
    "border border-base-200 max-w-2xl px-3 py-2 rounded-default w-full dark:border-base-700"
)


@dataclass(frozen=True, slots=True)
class Upload:
    """An uploaded file and the organization that owns its rows."""

    name: str
    content: bytes
    organization_id: UUID | None


class UploadForm(forms.Form):
    """Asks for a file. The refusal of a larger one names ``command``."""

    command: ClassVar[str] = "the import command"
    file = forms.FileField(widget=forms.FileInput(attrs={"class": _FILE}), max_length=255)

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file.size > MAX_BYTES:
            raise ValidationError(f"The file is larger than 5 MiB. Use {self.command} instead.")
        return file

    @property
    def upload(self) -> Upload:
        file = self.cleaned_data["file"]
        organization = self.cleaned_data.get("organization")
        return Upload(file.name, file.read(), None if organization is None else organization.pk)


class ExportForm(forms.Form):
    """Asks for the rows to export; without fields the export starts at once."""


class BulkFile:
    """The file of a list's rows; a subclass reads it in ``load`` and writes it in ``export``.

    ``kinds`` are the kinds of changes that it may make, and ``written`` the models of its rows if
    they are not those of the list alone.
    """

    upload_form: type[UploadForm] = UploadForm
    export_form: type[ExportForm] = ExportForm
    help = ""
    kinds: tuple[ChangeKind, ...] = ()
    written: tuple[str, ...] = ()

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        """Applies a file, all or none; raises :class:`ImportRefused`.

        Histories name ``by``, the operator.
        """
        raise NotImplementedError

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        """Returns the name and the parts of the exported file."""
        raise NotImplementedError

    def find_demand(self) -> ChangeKind | None:
        """Returns the kind by which another operator must approve a file now."""
        return FourEyes(self.kinds).find_demand(None) if self.kinds else None

    def plan(self, upload: Upload, by: str) -> tuple[ImportPlan, str, Report]:
        """Returns what a file would change, a digest of all of it, and its counts."""
        plan, seen = ImportPlan(SHOWN), hashlib.sha256()

        def add(
            kind: str, row: str, outcome: RowOutcome, changes: Sequence[RowChange] = ()
        ) -> None:
            plan.add(kind, row, outcome, changes)
            seen.update(repr((kind, row, str(outcome), [str(each) for each in changes])).encode())

        with _applying():
            report = self.load(upload, by=by, dry_run=True, on_row=add)
        return plan, seen.hexdigest(), report

    def apply(self, upload: Upload, *, by: str, action: str) -> str:
        """Applies a file with one entry in the audit log; returns what to tell."""
        with _applying():
            report = self.load(upload, by=by, dry_run=False, on_row=None)
            audit.record_import(
                by,
                action,
                organization_id=upload.organization_id,
                counts={"created": report.created, "updated": report.updated},
            )
        counts = "; ".join(f"{kind}: {text}" for kind, text in _count_rows(report))
        return f"The file was imported. {counts}."


def may_import(page: Any, request: HttpRequest) -> bool:
    """Returns whether the operator may add and change rows of every model of a page's file."""
    # A change set may name a page that has none.
    if page.bulk_file is None:
        return False
    labels = page.bulk_file.written or (page.opts.label_lower,)
    return all(
        request.user.has_perm(f"{app}.{verb}_{model}")
        for app, model in (label.split(".") for label in labels)
        for verb in ("add", "change")
    )


def import_file(page: Any, request: HttpRequest) -> HttpResponse:
    """Asks for a file, shows what it changes, and imports it."""
    file: BulkFile = page.bulk_file
    if request.method != "POST":
        return _ask(page, request, file.upload_form(initial=request.GET.dict()))
    if "signed_upload" in request.POST:
        return _apply(page, request)
    form = file.upload_form(request.POST, request.FILES)
    if not form.is_valid():
        return _ask(page, request, form)
    upload = form.upload
    try:
        page.require_touch(request, upload)
        plan, _, report = file.plan(upload, actor_of(request))
        if file.find_demand() is not None:
            _require_shown(plan)
    except ImportRefused as exc:
        return _ask(page, request, form, refusals=exc.problems)
    except Forbidden as exc:
        return _ask(page, request, form, refusals=[exc.message])
    return _show(
        page,
        request,
        "Confirm the import",
        upload=upload,
        rows=plan.rows,
        hidden=plan.hidden,
        hidden_text=f"{plan.hidden:,}",
        unchanged=(unchanged := sum(report.unchanged.values())),
        unchanged_text=f"{unchanged:,}",
        counts=_count_rows(report),
        changes=sum(report.created.values()) + sum(report.updated.values()),
        signed_upload=_sign_upload(upload, salt=_salt(page, request)),
    )


def export_file(page: Any, request: HttpRequest) -> HttpResponseBase:
    """Streams the file; asks first for what its form needs."""
    file: BulkFile = page.bulk_file
    form = file.export_form(request.GET if "export" in request.GET else None)
    if file.export_form is ExportForm or form.is_valid():
        name, parts = file.export(getattr(form, "cleaned_data", {}))
        return stream_file(request, name, parts)
    if not form.is_bound:
        form.initial = request.GET.dict()
    return _show(page, request, "Export file", form=form, exports=True)


def _apply(page: Any, request: HttpRequest) -> HttpResponse:
    file: BulkFile = page.bulk_file
    try:
        upload = _read_upload(request.POST["signed_upload"], salt=_salt(page, request))
    except signing.BadSignature:
        text = "The preview has expired or is not yours. Nothing was changed. Send it again."
        return _ask(page, request, file.upload_form(), refusals=[text])
    try:
        page.require_touch(request, upload)
        if (kind := file.find_demand()) is not None:
            return _propose(page, request, upload, kind)
        action = f"admin: import {page.opts.verbose_name_plural}"
        text = file.apply(upload, by=actor_of(request), action=action)
    except ImportRefused as exc:
        return _ask(page, request, file.upload_form(), refusals=exc.problems)
    except GatewayError as exc:
        return _ask(page, request, file.upload_form(), refusals=[exc.message])
    page.message_user(request, text, messages.SUCCESS)
    return HttpResponseRedirect(list_url(page))


def _require_shown(plan: ImportPlan) -> None:
    """Raises :class:`ImportRefused` for a plan of which a second person would not see all rows."""
    if plan.hidden:
        text = (
            f"{len(plan.rows) + plan.hidden:,} rows change, and who approves a file sees at most "
            f"{SHOWN:,}. Send it in smaller files, or use the import command."
        )
        raise ImportRefused([text])


def _propose(page: Any, request: HttpRequest, upload: Upload, kind: ChangeKind) -> HttpResponse:
    plan, seen, _ = page.bulk_file.plan(upload, actor_of(request))
    _require_shown(plan)
    owner = upload.organization_id
    proposal = Proposal(
        kind=kind,
        operation=IMPORT,
        page=page.opts.label_lower,
        needs=f"{page.opts.app_label}.change_{page.opts.model_name}",
        subject=f"import of {upload.name}",
        organization_id=owner,
        arguments={"name": upload.name, "organization": None if owner is None else str(owner)},
        # A decision erases the file with what is secret.
        sealed={"content": base64.b64encode(upload.content).decode()},
        state={_PLAN: seen},
        changes=plan.rows,
    )
    return page.propose(request, proposal)


def _read_plan(
    page: Any, request: HttpRequest, change_set: ChangeSet, target: Any
) -> dict[str, str]:
    return {_PLAN: page.bulk_file.plan(_read_proposed(change_set), actor_of(request))[1]}


def _apply_proposed(page: Any, request: HttpRequest, change_set: ChangeSet, target: Any) -> str:
    action = f"{change_set}, proposed by {change_set.proposed_by}"
    return page.bulk_file.apply(_read_proposed(change_set), by=actor_of(request), action=action)


IMPORTING: Final = PageOperation(
    may_apply=lambda page, request, target: may_import(page, request),
    read_state=_read_plan,
    apply=_apply_proposed,
)
"""The import of a page's file as a change set."""


def _ask(
    page: Any, request: HttpRequest, form: forms.Form, *, refusals: list[str] | None = None
) -> HttpResponse:
    return _show(page, request, "Import file", form=form, refusals=refusals)


def _show(page: Any, request: HttpRequest, title: str, **context: Any) -> HttpResponse:
    demand = None if context.get("form") is not None else page.bulk_file.find_demand()
    beside = {"help": page.bulk_file.help, "demand": demand}
    return render_page(page, request, "admin/upload.html", title, **{**beside, **context})


def _salt(page: Any, request: HttpRequest) -> str:
    return f"console.uploads:{page.opts.label_lower}:{request.user.pk}"


@contextmanager
def _applying() -> Iterator[None]:
    """Runs the transaction of a file, which takes as long as the file needs."""
    with audit.acting_as_nobody(), transaction.atomic():
        take_time()
        yield


def _sign_upload(upload: Upload, *, salt: str) -> str:
    """Returns the upload as a signed text for a form field of the preview page."""
    owner = None if upload.organization_id is None else str(upload.organization_id)
    content = base64.b64encode(upload.content).decode()
    return signing.dumps([upload.name, owner, content], salt=salt, compress=True)


def _read_upload(text: str, *, salt: str) -> Upload:
    """Returns a signed upload; raises ``BadSignature`` after an hour or for another salt."""
    name, owner, content = signing.loads(text, salt=salt, max_age=_LIFETIME)
    return Upload(name, base64.b64decode(content), None if owner is None else UUID(owner))


def _read_proposed(change_set: ChangeSet) -> Upload:
    """Returns the file of a change set, which is encrypted until it is decided."""
    owner = change_set.arguments["organization"]
    content = base64.b64decode(read_sealed(change_set)["content"])
    return Upload(change_set.arguments["name"], content, None if owner is None else UUID(owner))


def _count_rows(report: Report) -> list[tuple[str, str]]:
    """Returns a text such as ``2 new, 0 changed, 1 unchanged`` for each kind of row."""
    counts = {
        "new": report.created, "changed": report.updated, "unchanged": report.unchanged,
    }  # fmt: skip
    return [
        (kind.replace("_", " "), ", ".join(f"{rows[kind]} {word}" for word, rows in counts.items()))
        for kind in report.created
    ]
