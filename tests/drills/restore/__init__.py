"""Backups that are restored, with the commands of the page that describes them."""
