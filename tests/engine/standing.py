"""A module whose cells stand still as soon as they are forked."""

from __future__ import annotations

import os
import signal

os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGSTOP))
