"""The app that comes with Perdure: what `perdure worker` runs and `perdure add` fills when no other is named."""

from __future__ import annotations

from perdure.app import Perdure
from perdure.pipelines.document import documents
from perdure.pipelines.installed import image_pipeline
from perdure.pipelines.mail.pipeline import mails

images = image_pipeline()
app = Perdure(pipelines=[documents, mails] if images is None else [documents, images, mails])
