"""Describes for people what an import or a price list changes, column by column."""
