"""The console's pages for generations, feedback, and what leaves the database."""

from inference.admin.generations import FeedbackAdmin, GenerationAdmin
from inference.admin.retention import DepartureAdmin
