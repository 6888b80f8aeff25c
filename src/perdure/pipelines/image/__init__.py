"""Images: what they are, smaller ones to show, and what is to be seen on them. Run it where it can be killed.

    opening → pixels    any file that claims to be an image, guarded; upright sRGB in 8 bits
    facts               format, size, colours, camera, hash: without any service (exif, colours)
    variants            thumbnail, medium, large in WebP and AVIF; the preview that a service is shown
    describe            metadata by a vision service, or the record that says "later" (metadata)

Nothing is written here. Needs the extra `images`.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("PIL") is None:
    raise ImportError("images need Pillow: pip install 'perdure[images]'", name="PIL")

#: Raise it when a change gives other facts or variants for the same image.
VERSION = 1
