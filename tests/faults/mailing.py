"""The mail pipeline for workers of the fault tests: `perdure worker tests.faults.mailing:app`."""

from __future__ import annotations

import os

from perdure import Perdure
from perdure.pipelines.mail.pipeline import mails
from tests.faults.stages import STORE_VARIABLE

APP = "tests.faults.mailing:app"

app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///not-opened.db"), pipelines=[mails])
