"""What must have happened in a handful of worlds; a simulator in which it does not happen any more has gone blind."""

from __future__ import annotations

#: What befalls processes and the store.
FAULTS = (
    "killed", "killed before a commit", "killed after a commit", "killed by its supervisor", "crashed by a document",
    "asked to stop", "gave up", "frozen", "frozen beyond the lease", "clock set forward", "clock set back", "busy",
    "away", "reply lost", "slow", "outage", "connection cut", "wake-up lost", "nursery lost", "dependency down",
    "migrated", "outdated", "commit of a dead process",
)  # fmt: skip
#: What clients and operators do.
VERBS = (
    "add answered added", "add answered exists", "add answered refreshed", "answered add_many", "answered look",
    "act cancel", "act requeue", "act raise", "act pause", "act resume", "act hold", "act release", "answered limit",
    "answered weigh", "cancel refused", "raise refused", "add_once", "add_once again", "add_once refused",
    "requeue_dead", "requeue_dead: dry", "purge", "purge: dry", "priority answered", "answered put_off", "answered see",
    "answered export", "sweep success", "retained",
)  # fmt: skip
#: What the engine does.
DEEDS = (
    "claim", "claim under a limit", "claim under a gate", "past its limit", "let in at a rate", "stage",
    "stage in a cell", "cell crashed", "save", "save item",
    "item", "child", "follow-up", "hook", "generation", "suspect", "outcome done", "outcome retry", "outcome later",
    "outcome hold", "outcome dead", "outcome cancelled", "waiting to queued", "parked to queued", "queued to parked",
    "taken back, lease over", "taken back, worker gone", "worker buried", "write fenced", "job pruned", "round failed",
    "superseded", "handed over", "event published", "outcome answered", "answer saved", "answer repeated",
    "answer refused", "failed elsewhere", "unanswered", "lent", "chunks superseded", "chunks kept", "connected",
    "follow-up overtaken", "purged", "imported", "requeued by a stuck sweep", "feed followed",
    "feed: done", "feed: dead", "feed: cancelled", "feed: requeued", "feed: held", "outcome gather", "gathered",
    "degraded", "repair", "repaired", "feed: degraded", "feed: repaired",
)  # fmt: skip
#: How documents end.
ENDS = (
    "plain done", "parent done", "slow done", "flaky done", "rude done", "late done", "needy done", "shaky done",
    "pale done", "fading done", "gloomy done", "failing dead", "broken dead", "poison dead", "hanging dead",
    "blocking dead", "eternal dead", "plain cancelled",
)  # fmt: skip
HAPPENS = FAULTS + VERBS + DEEDS + ENDS
