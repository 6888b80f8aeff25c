"""The API beside a model of it: two organisations, everything they may do with documents, and what must be answered."""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from tests.api.server import Server

DOCUMENTS, PIPELINE = "/v3/documents", "document"
WORDS = st.sampled_from(["one", "two", "three", "bad one", "bad two"])
WAYS = st.sampled_from(["text", "json", "file", "form", "raw", "bulk"])
ORGS = st.sampled_from([0, 1])
KEYS = st.sampled_from(["k1", "k2"])
ENDED = ("done", "dead", "cancelled")
_numbers = itertools.count()


@dataclass
class Known:
    """A document as the model has it."""

    id: str
    org: int
    identity: tuple[str, ...] | None
    content: str
    state: str = "queued"
    generation: int = 1
    found: str = "queued"  # in which adding it again found it


@dataclass
class Org:
    """What one organisation has."""

    documents: dict[str, Known] = field(default_factory=dict)
    onces: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    webhooks: set[str] = field(default_factory=set)

    def find(self, identity: tuple[str, ...]) -> Known | None:
        return next((one for one in self.documents.values() if one.identity == identity), None)


def sent(way: str, word: str, **more: Any) -> dict[str, Any]:
    """The request that hands a word in; each way has contents of its own."""
    options: dict[str, Any] = {"pipeline": PIPELINE, **more}
    match way:
        case "json":
            return {"json": {**options, "json": {"it": word}}}
        case "file":
            return {"json": {**options, "file": base64.b64encode(f"file {word}".encode()).decode()}}
        case "form":
            form = {name: str(value).lower() for name, value in options.items()}
            return {"files": {"file": ("a.txt", f"form {word}".encode(), "text/plain")}, "data": form}
        case "raw":
            content = {"content": f"raw {word}".encode(), "headers": {"Content-Type": "text/plain"}}
            return {**content, "params": options}
        case "bulk":
            return {"json": {"documents": [{**options, "text": f"bulk {word}"}]}}
    return {"json": {**options, "text": word}}


class Model(RuleBasedStateMachine):
    """Made by `test_proof_model` with a server that is running."""

    ids: Bundle[str] = Bundle("ids")
    hooks: Bundle[tuple[int, str]] = Bundle("hooks")

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server

    @initialize()
    def begin(self) -> None:
        number = next(_numbers)
        names = [f"org{number}a", f"org{number}b"]
        self.clients = [self.server.client(name, "read", "write", "operate") for name in names]
        self.orgs = [Org(), Org()]

    def teardown(self) -> None:
        for client in getattr(self, "clients", []):
            client.close()

    def _post(self, org: int, way: str, asked: dict[str, Any], once: str | None = None) -> Any:
        if once is not None:
            asked = {**asked, "headers": {**asked.get("headers", {}), "Idempotency-Key": once}}
        answer = self.clients[org].post(f"{DOCUMENTS}/bulk" if way == "bulk" else DOCUMENTS, **asked)
        assert answer.status_code in (200, 201, 422), answer.text
        if way == "bulk" and answer.status_code == 201:
            return answer.status_code, answer.json()["documents"][0]
        return answer.status_code, answer.json()

    def _added(self, org: int, said: dict[str, Any], identity: tuple[str, ...] | None, content: str) -> str:
        assert said["answer"] == "added"
        id_: str = said["id"]
        assert not any(id_ in one.documents for one in self.orgs)
        self.orgs[org].documents[id_] = Known(id_, org, identity, content)
        return id_

    def _again(self, known: Known, otherwise: str) -> str:
        """What adding it again answers: a dead one starts again."""
        known.found = known.state
        if known.state != "dead":
            return otherwise
        known.state, known.generation = "queued", known.generation + 1
        return "requeued"

    # --- in --------------------------------------------------------------------------------------

    @rule(target=ids, org=ORGS, way=WAYS, word=WORDS, dedupe=st.booleans())
    def add(self, org: int, way: str, word: str, dedupe: bool) -> Any:
        status, said = self._post(org, way, sent(way, word, dedupe=dedupe))
        identity = (way, word) if dedupe else None
        if identity is not None and (known := self.orgs[org].find(identity)) is not None:
            assert said == {"id": known.id, "answer": self._again(known, "exists"), "state": known.found}
            assert status == (201 if way == "bulk" else 200)
            return multiple()
        assert status == 201
        return self._added(org, said, identity, f"{way} {word}")

    @rule(target=ids, org=ORGS, key=KEYS, word=WORDS)
    def add_under_its_own_key(self, org: int, key: str, word: str) -> Any:
        status, said = self._post(org, "text", sent("text", word, key=key))
        known = self.orgs[org].find(("key", key))
        if known is None:
            assert status == 201
            return self._added(org, said, ("key", key), word)
        assert status == 200
        if known.content == word:
            assert said == {"id": known.id, "answer": self._again(known, "unchanged"), "state": known.found}
        else:
            assert said == {"id": known.id, "answer": "refreshed", "state": known.state}
            known.content, known.state, known.generation = word, "queued", known.generation + 1
        return multiple()

    @rule(target=ids, org=ORGS, way=WAYS, word=WORDS, once=KEYS)
    def add_once(self, org: int, way: str, word: str, once: str) -> Any:
        status, said = self._post(org, way, sent(way, word, dedupe=False), once)
        before = self.orgs[org].onces.get(once)
        if before is None:
            assert status == 201
            self.orgs[org].onces[once] = (f"{way} {word}", said)
            return self._added(org, said, None, f"{way} {word}")
        if before[0] == f"{way} {word}":
            assert (status, said) == (201, before[1])
        else:
            assert (status, said["code"]) == (422, "idempotency_key_reused")
        return multiple()

    # --- what becomes of them --------------------------------------------------------------------

    @rule()
    def work(self) -> None:
        self.server.run(self.server.service.run_until_idle())
        for org in self.orgs:
            for one in org.documents.values():
                if one.state == "queued":
                    one.state = "dead" if "bad" in one.content else "done"

    @rule(org=ORGS, id_=ids)
    def requeue(self, org: int, id_: str) -> None:
        self._act(org, id_, "requeue", allowed=ENDED, becomes="queued")

    @rule(org=ORGS, id_=ids)
    def cancel(self, org: int, id_: str) -> None:
        self._act(org, id_, "cancel", allowed=("queued",), becomes="cancelled")

    def _act(self, org: int, id_: str, verb: str, allowed: tuple[str, ...], becomes: str) -> None:
        answer = self.clients[org].post(f"{DOCUMENTS}/{id_}/{verb}", json={"reason": "the model"})
        known = self.orgs[org].documents.get(id_)
        if known is None:
            assert (answer.status_code, answer.json()["code"]) == (404, "document_unknown")
        elif known.state not in allowed:
            assert (answer.status_code, answer.json()["code"]) == (409, "move_forbidden")
        else:
            assert answer.status_code == 200, answer.text
            known.state, known.generation = becomes, known.generation + (verb == "requeue")

    @rule(org=ORGS)
    def purge(self, org: int) -> None:
        gone = [one.id for one in self.orgs[org].documents.values() if one.state == "dead"]
        answer = self.clients[org].post("/v3/dead/purge", json={"all": True, "confirm": True})
        assert answer.status_code == 200, answer.text
        for id_ in gone:
            del self.orgs[org].documents[id_]

    # --- what can be read ------------------------------------------------------------------------

    @rule(org=ORGS, id_=ids)
    def get(self, org: int, id_: str) -> None:
        answer, known = self.clients[org].get(f"{DOCUMENTS}/{id_}"), self.orgs[org].documents.get(id_)
        if known is None:
            assert (answer.status_code, answer.json()["code"]) == (404, "document_unknown")
            return
        found = answer.json()
        assert (found["status"], found["generation"]) == (known.state, known.generation)

    @rule(org=ORGS, limit=st.integers(1, 7), state=st.sampled_from([None, "queued", *ENDED]))
    def read_page_by_page(self, org: int, limit: int, state: str | None) -> None:
        asked: dict[str, Any] = {"limit": limit} | ({"state": state} if state else {})
        seen: list[str] = []
        while True:
            page = self.clients[org].get(DOCUMENTS, params=asked).json()
            assert len(page["documents"]) <= limit
            seen += [one["id"] for one in page["documents"]]
            if page["next"] is None:
                break
            asked["after"] = page["next"]
        mine = self.orgs[org].documents.values()
        assert seen == sorted((one.id for one in mine if state in (None, one.state)), reverse=True)

    @rule(org=ORGS)
    def dead_letters(self, org: int) -> None:
        found = self.clients[org].get("/v3/dead").json()["documents"]
        mine = self.orgs[org].documents.values()
        assert {one["id"] for one in found} == {one.id for one in mine if one.state == "dead"}

    # --- webhooks --------------------------------------------------------------------------------

    @rule(target=hooks, org=ORGS)
    def add_webhook(self, org: int) -> tuple[int, str]:
        answer = self.clients[org].post("/v3/webhooks", json={"url": "https://example.org/hook"})
        assert answer.status_code == 201, answer.text
        self.orgs[org].webhooks.add(answer.json()["id"])
        return org, answer.json()["id"]

    @rule(org=ORGS, hook=consumes(hooks))
    def remove_webhook(self, org: int, hook: tuple[int, str]) -> None:
        answer = self.clients[org].delete(f"/v3/webhooks/{hook[1]}")
        assert answer.status_code == (204 if hook[0] == org else 404)
        self.orgs[org].webhooks.discard(hook[1])

    @invariant()
    def webhooks_are_ones_own(self) -> None:
        for org, client in zip(getattr(self, "orgs", []), getattr(self, "clients", []), strict=True):
            answer = client.get("/v3/webhooks")
            found = {one["id"] for one in answer.json()["webhooks"]}
            assert found == org.webhooks, f"{found} and not {org.webhooks}: {answer.text}"
