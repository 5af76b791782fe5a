"""The console's pages for generations and feedback."""

from inference.admin.feedback import FeedbackAdmin
from inference.admin.generations import GenerationAdmin

__all__ = ["FeedbackAdmin", "GenerationAdmin"]
