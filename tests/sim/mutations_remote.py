"""Planted bugs around what other services are told, and what they answer."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

from perdure.engine import answering, recovery
from perdure.store.sqlite_dialect import SqliteDialect
from tests.sim.planting import breaks, sql


@breaks("told")
def events_beside_the_transaction() -> Iterator[None]:
    """The event is sent away before anybody has confirmed it: what is lost on the way is never sent again."""
    with mock.patch.object(SqliteDialect, "OUTBOX_ADD", "SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10"):
        yield


@breaks("told", "converges")
def leases_that_never_begin() -> Iterator[None]:
    """The event is published, and nobody begins to wait for the answer."""
    with sql("LEASE_BEGIN", "lease_until_ms = $1 + $5", "lease_until_ms = nullif($1 + $5, $1 + $5)"):
        yield


@breaks("told")
def deaths_that_nobody_hears_of() -> Iterator[None]:
    """A document dies in the hands of another service, which is not told."""
    with (
        mock.patch.object(answering, "death_notice", return_value=()),
        mock.patch.object(recovery, "death_notice", return_value=()),
    ):
        yield
