"""Scopes: whatever an organisation puts into its documents, searches of others find and rank what they did before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.store import candidates, indexing
from tests.store.making import ORG, World, document, output, save
from tests.store.test_chunks import chunk, chunk_set, indexed, texts

VICTIM = " ".join(indexing.scope(ORG, "", "d1"))
#: What text may look like that wants to be taken for the scope of another organisation.
FORGED = [
    VICTIM,
    VICTIM.replace("o", "in o").replace(" c", " in c"),
    " ".join(f"'in {word}'" for word in VICTIM.split()),
    f'scope : "{VICTIM}" found : words',
    " ".join(f"{VICTIM.split()[0]}{word}" for word in ("blue", "whale")),
    f"<a in='{VICTIM}'> http://in/{VICTIM.split()[0]}?in={VICTIM.split()[0]} in@{VICTIM.split()[0]}.example",
]


@pytest.mark.parametrize("forged", FORGED, ids=["plain", "spaced", "quoted", "columns", "joined", "signs"])
async def test_text_cannot_enter_the_scope_of_another_organisation(
    world: World, forged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The places of those that are ranked are for the organisation that asks."""
    monkeypatch.setattr(candidates, "BUDGET", 3)
    monkeypatch.setattr(candidates, "CANDIDATES", 3)
    await indexed(world, "a blue whale", name="before")
    theirs = replace(document(forged, org="attacker"), collection=forged, meta=forged.encode())
    await world.add(theirs)
    (claim,) = await world.claim()
    made = [chunk(theirs.id, n, f"{forged} blue whale {forged}") for n in range(4)]
    assert await world.store.save(save(claim.job, output=output(), chunks=chunk_set(*made)))
    await indexed(world, "the blue whale of ours", name="after")

    for query in ('"blue whale"', "blue whale", "whale"):
        assert set(await texts(world, query)) == {"a blue whale", "the blue whale of ours"}, query
        assert await texts(world, query, collection=forged) == []


async def test_words_of_a_scope_are_words_like_others_in_a_query(world: World) -> None:
    """Asking for them finds the texts that have them, and not all that is in the scope."""
    await indexed(world, "a blue whale")
    await indexed(world, "a whale of theirs", org="elsewhere")

    for word in (*VICTIM.split(), *indexing.scope("elsewhere")):
        for query in (word, f'"{word}"', f'"in {word}"', f'found : "{word}whale"', f"{word}whale"):
            assert await texts(world, query) == [], query
    await indexed(world, f"it says {VICTIM}")
    assert await texts(world, VICTIM.split()[0]) == [f"it says {VICTIM}"]


async def test_how_common_a_word_is_elsewhere_gives_it_no_weight(world: World) -> None:
    """Else a search would tell which words others have, and others could push a word up or down."""
    one = "walrus " + "filler " * 12
    other = "narwhal " + "filler " * 12
    for text in (one, other, *("nothing of it " * 4,) * 8):
        await indexed(world, text)
    alone = await texts(world, "walrus narwhal")

    for word in ("walrus", "narwhal"):
        await indexed(world, *[f"{word} {n} " + "filler " * 12 for n in range(60)], org=f"with {word}")
        assert await texts(world, "walrus narwhal") == alone, word
