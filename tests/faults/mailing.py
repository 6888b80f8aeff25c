"""The mail pipeline for workers of the fault tests: `perdure worker tests.faults.mailing:app`.

A message with the header `X-Crash` ends the process that decodes it.
"""

from __future__ import annotations

import os
import signal

from perdure import Context, Document, Perdure
from perdure.engine.address import register
from perdure.pipelines.mail.message import Message
from perdure.pipelines.mail.message_pipeline import messages, read
from perdure.pipelines.mail.pipeline import mails
from tests.faults.stages import STORE_VARIABLE

APP = "tests.faults.mailing:app"

decoded = read.fn


def crashing(doc: Document, ctx: Context) -> Message:
    if b"X-Crash: " in doc.data:
        os.kill(os.getpid(), signal.SIGSEGV)
    return decoded(doc, ctx)


read.fn = crashing
register(__name__, messages)  # for cells: they look for it where its functions are

app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///not-opened.db"), pipelines=[mails])
