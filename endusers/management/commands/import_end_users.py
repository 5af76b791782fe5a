from __future__ import annotations

from accounts.management.arguments import OrganizationImport
from endusers import imports


class Command(OrganizationImport):
    help = "Registers the end users of a file and sets their flags, all or none."
    file_help = "CSV with the header user[,is_active], or JSON lines; - for standard input"
    apply = staticmethod(imports.apply)
