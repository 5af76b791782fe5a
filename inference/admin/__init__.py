"""The console's pages for generations, feedback, and what leaves the database."""

from inference.admin.feedback import FeedbackAdmin
from inference.admin.generations import GenerationAdmin
from inference.admin.retention import DepartureAdmin

__all__ = ["DepartureAdmin", "FeedbackAdmin", "GenerationAdmin"]
