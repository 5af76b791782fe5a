"""The rules of an ignore file: which files of the project a container engine receives."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path


class IgnoreRules:
    """The rules of an ignore file, as Docker and Podman read them.

    The last rule that matches a path, or a folder above it, decides. Rules begin at the root, ``*``
    and ``?`` stop at a slash, and ``**`` stands for any number of folders. (Git's rules differ:
    there ``name`` matches at any depth, and nothing below an excluded folder comes back.)
    https://docs.docker.com/build/concepts/context/#dockerignore-files
    """

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[re.Pattern[str], bool]] = []
        for line in text.splitlines():
            pattern = "" if line.startswith("#") else line.strip()
            is_kept = pattern.startswith("!")
            pattern = posixpath.normpath(pattern.removeprefix("!").strip()).lstrip("/")
            if pattern and pattern != ".":
                self._rules.append((re.compile(_translate(pattern)), is_kept))

    def is_ignored(self, path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        is_ignored = False
        for pattern, is_kept in self._rules:
            if any(pattern.fullmatch(each) for each in above):
                is_ignored = not is_kept
        return is_ignored

    def context(self, root: Path) -> set[str]:
        """Returns the paths of all files below the root that an engine receives."""
        found = set()
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name).relative_to(root).as_posix()
                if not self.is_ignored(path):
                    found.add(path)
        return found


def _translate(pattern: str) -> str:
    """Returns the regular expression of a pattern."""
    pieces: list[str] = []
    for token in re.findall(r"\*\*/?|\\.|\[[^]]*\]|.", pattern):
        match token:
            case "**/":
                pieces.append("(?:.*/)?")
            case "**":
                pieces.append(".*")
            case "*":
                pieces.append("[^/]*")
            case "?":
                pieces.append("[^/]")
            case _ if token.startswith("["):
                pieces.append(token)
            case _:
                pieces.append(re.escape(token[-1]))
    return "".join(pieces)
