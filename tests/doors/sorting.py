"""An app as a user has it in a module: the pipelines of the tests of `perdure status`."""

from __future__ import annotations

from perdure import Perdure
from tests.doors.test_status import letters, parcels

app = Perdure(pipelines=[letters, parcels])
