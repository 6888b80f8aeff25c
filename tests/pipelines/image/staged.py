"""A pipeline of images, as a process of its own can find it."""

from __future__ import annotations

from perdure import Document, Pipeline
from perdure.pipelines.image import describe as vision
from perdure.pipelines.image.facts import Facts
from perdure.pipelines.image.facts import facts as facts_of
from perdure.pipelines.image.variants import Variant, preview, variants

images = Pipeline("images", attempts=3)


@images.stage(isolate=True, sandbox=True, timeout=60, memory_mb=1024)
def facts(doc: Document) -> Facts:
    return facts_of(doc.path)


@images.stage(isolate=True, sandbox=True, timeout=60, memory_mb=1024)
def copies(doc: Document) -> list[Variant]:
    return list(variants(doc.path))


@images.stage(isolate=True, sandbox=True, timeout=60, memory_mb=1024)
def description(doc: Document) -> vision.Described:
    return vision.describe(preview(doc.path))
