"""The HTTP door. It speaks to the app only; `build.build` makes the application, `serve.serve` runs it.

build       routes, errors and life of the application
caller      whose key it is, what it may do, how often
connections how many there are, of whom, and how long they may say nothing
receiving   bodies: JSON, multipart or raw, streamed to disk within limits; `forms`, `jsons` read them
readers     processes that read heavy JSON; `reader` is one of them
entries     the documents that a body asks to be taken in
adding      documents on their way in
documents   where they stand, lists, what is done to them
finding     search, chunks, connections, rows, content
dead        dead letters
operating   queues, dependencies, workers, the trail
auditing    whether all that was accepted is there
remote      answers of other services
webhooks    who is told of what happens
streaming   what happens, as server-sent events
problems    every error as problem+json with its stable code
views       what is asked and answered, as types; `overview` what operators see
health      whether the server lives and can work, and what it counts
"""
