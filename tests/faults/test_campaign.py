"""Workers, links, PgBouncer, PostgreSQL and its standbys are harmed at random; the books must agree afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.bouncer import Bouncer
from tests.faults.campaign import Campaign, minutes
from tests.faults.fleet import Fleet
from tests.faults.flow import seeded
from tests.faults.proxied import points
from tests.faults.proxy import Proxy
from tests.faults.replication import replication
from tests.faults.storm import PIPELINES

SHORT_MINUTES = 2.0
FAILOVER_EVERY_S = {"short": 50.0, "chosen": 180.0}


@pytest.mark.timeout(4 * 3_600)
@pytest.mark.parametrize("form", ["short", pytest.param("chosen", marks=pytest.mark.long)])
def test_campaign(tmp_path: Path, form: str) -> None:
    """`short` lasts 2 minutes, `chosen` CHAOS_MINUTES (30 by default)."""
    seconds = 60 * (SHORT_MINUTES if form == "short" else minutes())
    with (
        seeded() as rng,
        replication() as servers,
        Proxy(servers.primary.url, points()) as address,
        Bouncer(address.url, connections=8) as bouncer,
        Fleet(address.url, tmp_path, server_old=False, pipelines=PIPELINES) as fleet,
    ):
        campaign = Campaign(servers, address, bouncer, fleet, rng)
        try:
            campaign.run(seconds, FAILOVER_EVERY_S[form])
        finally:
            print(campaign.summary())
        campaign.check()
        for what in ("kills", "freezes", "cuts", "failovers"):
            assert campaign.counts[what] > 0, f"no {what}, so this showed less than it should"
