"""Bulk files on the pages of the console: shown as a plan first, applied when it is confirmed.

Between the two the file travels in the page, signed for the operator who sent it; it is kept
nowhere. An import is one entry of the audit log, whatever number of rows it touches.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from django import forms
from django.contrib import messages
from django.core import signing
from django.core.exceptions import ValidationError
from django.core.handlers.asgi import ASGIRequest
from django.db import transaction
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse

from config.audit import context as audit
from config.bulk.problems import ImportRefused
from config.bulk.report import Report, RowListener, RowOutcome
from config.console.base import ConsoleAdmin, actor_of
from config.console.unfold import unfold_action

MAX_BYTES: Final = 5 * 1024 * 1024
SHOWN: Final = 500
_LIFETIME: Final = 3600
_CHUNK: Final = 500
_FILE: Final = (
    "border border-base-200 max-w-2xl px-3 py-2 rounded-default w-full dark:border-base-700"
)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file as it was sent, and whose rows it has."""

    name: str
    content: bytes
    organization_id: UUID | None


class UploadForm(forms.Form):
    """Asks for a file."""

    file = forms.FileField(widget=forms.FileInput(attrs={"class": _FILE}), max_length=255)

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file.size > MAX_BYTES:
            raise ValidationError("The file must not be larger than 5 MiB; use the command.")
        return file

    @property
    def upload(self) -> Upload:
        file = self.cleaned_data["file"]
        organization = self.cleaned_data.get("organization")
        return Upload(file.name, file.read(), None if organization is None else organization.pk)


class ExportForm(forms.Form):
    """Asks for what is exported, where there is a choice."""


class UploadsAdmin(ConsoleAdmin):
    """A list with two more pages: to import a file, and to export one.

    A subclass loads a file in :meth:`load` and writes one in :meth:`export`.
    """

    actions_list = ("import_file", "export_file")
    upload_form: type[UploadForm] = UploadForm
    export_form: type[ExportForm] = ExportForm
    upload_help = ""
    written_models: tuple[str, ...] = ()

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        """Applies a file, all or none; raises :class:`ImportRefused`.

        Histories name ``by``, the operator.
        """
        raise NotImplementedError

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        """Returns the name and the parts of the file that the form asks for."""
        raise NotImplementedError

    def has_import_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """An import creates and changes rows of all its kinds."""
        labels = self.written_models or (self.opts.label_lower,)
        return all(
            request.user.has_perm(f"{app}.{verb}_{model}")
            for app, model in (label.split(".") for label in labels)
            for verb in ("add", "change")
        )

    def has_export_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_view_permission(request)

    @unfold_action(
        description="Import file", permissions=["import"], url_path="import", icon="upload"
    )
    def import_file(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return self._ask(request, self.upload_form(initial=request.GET.dict()))
        if "held" in request.POST:
            return self._apply(request)
        form = self.upload_form(request.POST, request.FILES)
        if not form.is_valid():
            return self._ask(request, form)
        upload = form.upload
        rows: list[tuple[str, str, RowOutcome]] = []

        def on_row(kind: str, row: str, outcome: RowOutcome) -> None:
            if len(rows) < SHOWN:
                rows.append((kind.replace("_", " "), row, outcome))

        try:
            with audit.acting_as_nobody():
                report = self.load(upload, by=actor_of(request), dry_run=True, on_row=on_row)
        except ImportRefused as exc:
            return self._ask(request, form, refusals=exc.problems)
        return self._page(
            request,
            "Confirm the import",
            upload=upload,
            rows=rows,
            hidden=_total(report) - len(rows),
            counts=_counts(report),
            changes=sum(report.created.values()) + sum(report.updated.values()),
            held=_held(upload, salt=self._salt(request)),
        )

    @unfold_action(
        description="Export file", permissions=["export"], url_path="export", icon="download"
    )
    def export_file(self, request: HttpRequest) -> HttpResponseBase:
        form = self.export_form(request.GET if "export" in request.GET else None)
        if self.export_form is ExportForm or form.is_valid():
            name, parts = self.export(getattr(form, "cleaned_data", {}))
            return _streamed(request, name, parts)
        if not form.is_bound:
            form.initial = request.GET.dict()
        return self._page(request, "Export file", form=form, exports=True)

    def _apply(self, request: HttpRequest) -> HttpResponse:
        try:
            upload = _released(request.POST["held"], salt=self._salt(request))
        except signing.BadSignature:
            text = "The plan is too old, or not yours. Nothing was changed; send the file again."
            return self._ask(request, self.upload_form(), refusals=[text])
        actor = actor_of(request)
        try:
            with audit.acting_as_nobody(), transaction.atomic():
                report = self.load(upload, by=actor, dry_run=False, on_row=None)
                audit.record_import(
                    actor,
                    f"admin: import {self.opts.verbose_name_plural}",
                    organization_id=upload.organization_id,
                    counts={"created": report.created, "updated": report.updated},
                )
        except ImportRefused as exc:
            return self._ask(request, self.upload_form(), refusals=exc.problems)
        counts = "; ".join(f"{kind}: {text}" for kind, text in _counts(report))
        self.message_user(request, f"The file is imported. {counts}.", messages.SUCCESS)
        return HttpResponseRedirect(self._list())

    def _ask(
        self, request: HttpRequest, form: forms.Form, *, refusals: list[str] | None = None
    ) -> HttpResponse:
        return self._page(request, "Import file", form=form, refusals=refusals)

    def _page(self, request: HttpRequest, title: str, **context: Any) -> HttpResponse:
        form = context.get("form")
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            "admin/upload.html",
            {
                **self.admin_site.each_context(request),
                "title": title,
                "opts": self.opts,
                "media": self.media if form is None else self.media + form.media,
                "help": self.upload_help,
                "list": self._list(),
                **context,
            },
        )

    def _list(self) -> str:
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")

    def _salt(self, request: HttpRequest) -> str:
        return f"console.uploads:{self.opts.label_lower}:{request.user.pk}"


def _held(upload: Upload, *, salt: str) -> str:
    owner = None if upload.organization_id is None else str(upload.organization_id)
    content = base64.b64encode(upload.content).decode()
    return signing.dumps([upload.name, owner, content], salt=salt, compress=True)


def _released(text: str, *, salt: str) -> Upload:
    name, owner, content = signing.loads(text, salt=salt, max_age=_LIFETIME)
    return Upload(name, base64.b64decode(content), None if owner is None else UUID(owner))


def _counts(report: Report) -> list[tuple[str, str]]:
    fates = {
        "new": report.created, "changed": report.updated, "unchanged": report.unchanged,
    }  # fmt: skip
    return [
        (kind.replace("_", " "), ", ".join(f"{fates[fate][kind]} {fate}" for fate in fates))
        for kind in report.created
    ]


def _total(report: Report) -> int:
    return sum(sum(part.values()) for part in (report.created, report.updated, report.unchanged))


def _streamed(request: HttpRequest, name: str, parts: Iterable[bytes]) -> StreamingHttpResponse:
    """Sends a file part by part, to an asynchronous server without keeping its loop waiting."""
    chunks = _joined(parts)
    return StreamingHttpResponse(
        _awaited(chunks) if isinstance(request, ASGIRequest) else chunks,
        content_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "no-store",
        },
    )


def _joined(parts: Iterable[bytes]) -> Generator[bytes]:
    rest = iter(parts)
    while chunk := b"".join(itertools.islice(rest, _CHUNK)):
        yield chunk


async def _awaited(chunks: Generator[bytes]) -> AsyncIterator[bytes]:
    def step() -> bytes | None:
        return next(chunks, None)

    try:
        while (chunk := await sync_to_async(step)()) is not None:
            yield chunk
    finally:
        # A transaction that is open in the generator ends in the thread where it began.
        await sync_to_async(chunks.close)()
