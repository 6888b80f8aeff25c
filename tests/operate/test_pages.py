"""Pages of documents go on after every document, also after one whose id another system made."""

from __future__ import annotations

import pytest

from perdure.errors import InputInvalid
from perdure.testing import trial
from tests.store.making import ORG, document


@pytest.mark.parametrize("org", [ORG, None])
def test_a_page_goes_on_after_a_document_that_was_imported_under_its_own_id(
    store_url: str, org: str | None
) -> None:
    with trial([], store=store_url) as app:
        ids = {app._call(app.service.store.add([document()]))[0].id for _ in range(3)}

        (first,) = app.documents(org=org, limit=1)
        others = app.documents(org=org, after=first.id)

        assert {first.id, *(one.id for one in others)} == ids
        with pytest.raises(InputInvalid, match="no place in the list"):
            app.documents(org=org, after="d1")
