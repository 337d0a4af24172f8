"""Finds everything that has the texts of a prompt, without changing anything."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rollouts.errors import InvalidInputError
from rollouts.forgetting.bodies import BodyMatches, find_body_matches
from rollouts.forgetting.evidence import EvidenceMatches, find_evidence
from rollouts.forgetting.files import count_uploads, find_artifacts
from rollouts.forgetting.raw_dumps import find_orphan_raw_files, find_raw_dumps_with_text
from rollouts.forgetting.texts import SearchText
from rollouts.models import Artifact, Dump, ForgottenPrompt, Pin, Project, Revision, get_step_position

KEY = re.compile(r"[a-z2-7]{26}")


@dataclass(slots=True)
class TraceReport:
    """Where the texts of a prompt are. `text` is None if no body has the prompt, or if it is too short to search for.

    `raw` are dumps whose raw bytes have the text outside of a body; `unsearched` are those that cannot be read, so they
    may have it. `waiting` dumps are indexed without the prompt. `uploads` are files of unknown content.
    """

    project: Project
    key: str
    bodies: BodyMatches
    text: SearchText | None
    evidence: EvidenceMatches
    artifacts: list[Artifact]
    raw: list[Dump]
    raw_orphans: list[str]
    unsearched: list[Dump]
    waiting: int
    uploads: int
    pins: list[Pin]
    plans: list[str]

    @property
    def dumps(self) -> list[Dump]:
        """The dumps with samples to remove."""
        return [self.bodies.dumps[pk] for pk, ordinals in self.bodies.ordinals.items() if ordinals]

    @property
    def counts(self) -> dict[str, int]:
        """What is removed. All 0: nothing was found."""
        dumps = self.dumps
        return {
            "samples": len(self.bodies.sample_ids),
            "dumps": len(dumps),
            "steps": len({tuple(get_step_position(dump).values()) for dump in dumps}),
            "runs": len({dump.run_id for dump in dumps}),
            "raw dumps": len({dump.sha256 for dump in [*dumps, *self.raw] if not dump.is_from_artifact}),
            "unused files": len(self.bodies.stale | self.bodies.orphans | set(self.raw_orphans)),
            "artifacts": len(self.artifacts),
            "evidence items": len(self.evidence.items) + len(self.evidence.rows),
            "shared links": len(self.evidence.links),
            "saved views": len(self.evidence.views),
        }

    @property
    def is_empty(self) -> bool:
        return not any(self.counts.values())


def parse_prompt_key(key: str) -> str:
    """Raises InvalidInputError."""
    if not KEY.fullmatch(key):
        message = f"{key[:60]!r} is no prompt key: it has 26 characters, and the URL of the prompt's page ends with it."
        raise InvalidInputError(message, "prompt")
    return key


def find_traces(project: Project, key: str, containing: bool = False, *, with_orphans: bool = True) -> TraceReport:
    """Reads all bodies of the project. With `containing`, other prompts that contain the text are removed too.
    `with_orphans`: also reads files without a row. Raises InvalidInputError."""
    known = ForgottenPrompt.objects.filter(project=project, key=parse_prompt_key(key)).first()
    keys = known.all_keys() if known else frozenset((key,))
    bodies = find_body_matches(project, keys, with_orphans=with_orphans)
    text = SearchText.from_prompt(bodies.prompt) if bodies.prompt else None
    if containing:
        bodies.include_others()
    raw, unsearched = find_raw_dumps_with_text(project, text)
    dumps = [bodies.dumps[pk] for pk, ordinals in bodies.ordinals.items() if ordinals]
    artifacts = find_artifacts(dumps)
    pins = list(Pin.objects.filter(artifacts__in=artifacts, removed_at=None).distinct().select_related("run"))
    plans = Revision.objects.newest().filter(entries__pin__in=pins).values_list("plan__name", flat=True)
    waiting = Dump.objects.filter(run__project=project, state__in=(Dump.State.RECEIVED, Dump.State.INDEXING))
    return TraceReport(
        project=project,
        key=key,
        bodies=bodies,
        text=text,
        evidence=find_evidence(project, keys | bodies.keys, bodies.sample_ids, text),
        artifacts=artifacts,
        raw=raw,
        raw_orphans=find_orphan_raw_files(project, text) if with_orphans else [],
        unsearched=unsearched,
        waiting=waiting.count(),
        uploads=count_uploads(),
        pins=pins,
        plans=sorted(set(plans)),
    )
