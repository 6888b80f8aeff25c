"""The HTTP door. It speaks to the app only; `build.build` makes the application, `serve.serve` runs it.

build       routes, errors and life of the application
caller      whose key it is, what it may do, how often
receiving   bodies: JSON, multipart or raw, streamed to disk within limits
documents   in, status, lists, out
finding     search, chunks, connections, content
operating   dead letters, queues, dependencies, workers, the trail
streaming   what happens, as server-sent events
problems    every error as problem+json with its stable code
views       what is answered, as types
"""
