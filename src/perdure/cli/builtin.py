"""The app that comes with Perdure: what `perdure worker` runs and `perdure add` fills when no other is named."""

from __future__ import annotations

from perdure.app import Perdure
from perdure.pipelines.document import documents
from perdure.pipelines.image.pipeline import images
from perdure.pipelines.mail.pipeline import mails

app = Perdure(pipelines=[documents, images, mails])
