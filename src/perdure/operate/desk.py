"""What the verbs of operators share: the store, who acts, and how documents, pipelines and stages are found."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import replace

from perdure.core.model import ORG_DEFAULT
from perdure.core.state_words import said
from perdure.engine.pipeline import AnyStage, Pipeline
from perdure.errors import DocumentUnknown, InputInvalid, PipelineUnknown, StageUnknown
from perdure.operate.whole_ids import CHARS_MIN, whole
from perdure.settings import Settings
from perdure.store.records import Status
from perdure.store.sql_store import SqlStore
from perdure.store.standing import Standing
from perdure.store.text import checked


class Desk:
    """Inherited by every group of verbs that `service.AsyncPerdure` is made of."""

    store: SqlStore
    settings: Settings
    given: Settings | None
    pipelines: Mapping[str, Pipeline]

    async def status(self, document_id: str, org: str | None = None, words: str | None = None) -> Status:
        found = await self.store.status(*await self._key(document_id, org))
        if found is None:
            raise unknown(document_id)
        return in_words([found], words)[0]

    async def standing(self, document_id: str, org: str) -> Standing:
        """Its status with its stages, as cheap as can be."""
        found = await self.store.standing(*await self._key(document_id, org))
        if found is None:
            raise unknown(document_id)
        return found

    def _who(self, given: str | None = None) -> str:
        """In whose name an act is done: as the caller says, by PERDURE_OPERATOR, or the user of this process."""
        named = given or self.settings.operator
        if named:
            return checked(named, "the name of who acts", 200)
        try:
            return getpass.getuser()
        except (OSError, KeyError):
            return "unknown"

    def _pipeline(self, pipeline: Pipeline | str) -> Pipeline:
        name = pipeline.name if isinstance(pipeline, Pipeline) else pipeline
        found = self.pipelines.get(name)
        if found is None:
            known = ", ".join(sorted(p for p in self.pipelines if "." not in p)) or "none"
            raise PipelineUnknown(f"no pipeline {name!r} is registered with this app (it has {known})")
        return found

    async def _key(self, document_id: str, org: str | None) -> tuple[str, str]:
        """The document's organisation and its whole id; where the caller names an organisation it must be that."""
        return await whole(self.store, document_id, org) or (org or ORG_DEFAULT, document_id)


def unknown(document_id: str) -> DocumentUnknown:
    """The error for an id that no document has."""
    return DocumentUnknown(
        f"there is no document {document_id}; check the id, of which {CHARS_MIN} characters are enough "
        "if they tell it apart"
    )


def in_words(found: Sequence[Status], words: str | None) -> list[Status]:
    """The documents with their states in the words of another system. Raises: InputInvalid."""
    try:
        said("done", words)
    except ValueError as error:
        raise InputInvalid(str(error), code="words_unknown") from None
    return list(found) if words is None else [replace(one, state=said(one.state, words)) for one in found]


def or_only(pipelines: Mapping[str, Pipeline], wanted: str) -> str:
    """What is wanted, or where that is not there, the only one that is not there for another's sake."""
    spawned = {each.name for pipeline in pipelines.values() for each in pipeline.then}
    own = [name for name in pipelines if "." not in name and name not in spawned]
    return own[0] if wanted not in pipelines and len(own) == 1 else wanted


def stage_of(pipeline: Pipeline, name: str) -> AnyStage:
    """The stage of this name; StageUnknown says which there are."""
    found = pipeline.at(name)
    if found is None:
        known = ", ".join(s.name for s in pipeline.stages)
        raise StageUnknown(f"pipeline {pipeline.name} has no stage {name!r} (it has {known})")
    return found
