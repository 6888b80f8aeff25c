"""What was answered with an id can be read at once, from the server that took it in and from every other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.api.served import new_key, served


@pytest.mark.parametrize(
    "tries",
    [
        pytest.param(10, marks=pytest.mark.full),
        pytest.param(5000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
def test_a_status_is_readable_as_soon_as_there_is_an_id(store_url: str, tries: int) -> None:
    headers = {"Authorization": f"Bearer {new_key(store_url, 'acme')}"}
    with served(store_url, "--no-worker") as one, served(store_url, "--no-worker") as other:
        servers = [httpx2.Client(base_url=url, headers=headers, timeout=90) for url in (one, other)]

        def again(n: int) -> list[int]:
            asked = {"text": f"text {n}", "pipeline": "notes"}
            taken = servers[n % 2].post("/v3/documents", json=asked)
            assert taken.status_code == 201, taken.text
            address = taken.headers["location"]
            return [servers[(n + k) % 2].get(address).status_code for k in (1, 0)]

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(again, range(tries)))
        for client in servers:
            client.close()
    assert found == [[200, 200]] * tries
