from __future__ import annotations

from config.models import Departure
from inference.management.commands import restore_generations


class Command(restore_generations.Command):
    help = "Brings archived audit entries, validations and sums of hours back, or lists them."
    model = Departure
    noun = "departure"
    columns = ("kind", "begin", "end", "left_at")
