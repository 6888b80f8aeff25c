"""The form of names that users give: pipelines, stages, queues, rows and dependencies.

A dependency is part of the name of a lane (`core.lane`), whose marks `+`, `~` and `?` no name contains.
"""

from __future__ import annotations

import re

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
NAME_RULE = "a small letter, then at most 62 small letters, digits, _ or -"
