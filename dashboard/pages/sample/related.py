"""What the pages of a sample show besides its row: body, labels, group, prompt history, replay, rules."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Q

from dashboard.pages.pins import ReplayLabel, load_replay_labels
from dashboard.pages.sample.prompt_history import PromptStep, build_history_key, build_prompt_steps, load_prompt_scores
from dashboard.pages.sample.rule_marks import RuleMark, load_rule_marks
from rollouts.models import Label, Sample, StepTemplate, add_templates, join_concurrent_steps
from rollouts.samples import SampleBody, load_bodies

MAX_SIBLINGS = 64  # of a group that are shown, next to the sample itself


GroupPlace = tuple[int, str]  # step id and group


@dataclass(frozen=True, slots=True)
class SharedEdge:
    """The opening or ending of a sample that `template.samples` of `total` responses of the step share."""

    template: StepTemplate
    total: int


@dataclass(slots=True)
class RelatedData:
    """`siblings` are the first of the `group_size` responses of the sample's group in the trainer's order, and the
    sample; `history` the steps of its prompt."""

    body: SampleBody
    labels: list[Label]
    siblings: list[Sample]
    group_size: int
    history: list[PromptStep]
    replay: ReplayLabel | None
    shared_edge: SharedEdge | None
    rules: list[RuleMark]


def load_related_data(samples: Sequence[Sample], reader: User | AnonymousUser) -> dict[str, RelatedData]:
    """{sample id: data} of the samples that have a body. Twenty samples of a step need as many queries as one.
    Raises StorageUnavailableError."""
    bodies, labels = load_bodies(samples), load_labels_by_sample(samples, reader)
    (groups, sizes), scores = load_siblings(samples), load_prompt_scores(samples)
    replays = load_replay_labels({sample.step_id: sample.step for sample in samples}.values())
    edges, rules = load_shared_edges(samples), load_rule_marks(samples, bodies)
    related: dict[str, RelatedData] = {}
    for sample in samples:
        if body := bodies.get(sample.pk):
            sample.dump = body.source_dumps[0]
            history = build_prompt_steps(scores[build_history_key(sample)], sample.step.step)
            group = (sample.step_id, sample.group)
            related[sample.pk] = RelatedData(
                body,
                labels[sample.pk],
                [row for at, row in enumerate(groups[group]) if at < MAX_SIBLINGS or row.pk == sample.pk],
                sizes[group],
                history,
                replays.get(sample.step_id),
                edges.get((sample.step_id, sample.opening or sample.ending)),
                rules.get(sample.pk, []),
            )
    return related


def load_shared_edges(samples: Iterable[Sample]) -> dict[tuple[int, int | None], SharedEdge]:
    """{(step id, key): edge} of the samples' openings, else endings. One query, two more if attempts of the run ran at
    the same time: such attempts count as one step."""
    keys = {(sample.step_id, key) for sample in samples if (key := sample.opening or sample.ending)}
    if not keys:
        return {}
    steps, wanted = ({pair[at] for pair in keys} for at in (0, 1))
    rows = list(StepTemplate.objects.filter(step__in=steps, key__in=wanted).select_related("step__attempt"))
    joined = join_concurrent_steps([row.step for row in rows])
    others = {step.pk for own in joined.values() for step in own} - set(joined)
    more = StepTemplate.objects.filter(step__in=others, key__in=wanted) if others else ()
    by_place = {(row.step_id, row.key): row for row in (*rows, *more)}
    edges: dict[tuple[int, int | None], SharedEdge] = {}
    for row in rows:
        own = joined[row.step_id]
        (template,) = add_templates(by_place[step.pk, row.key] for step in own if (step.pk, row.key) in by_place)
        edges[row.step_id, row.key] = SharedEdge(template, sum(step.samples for step in own))
    return edges


def load_labels_by_sample(samples: Iterable[Sample], reader: User | AnonymousUser) -> dict[str, list[Label]]:
    """{sample id: labels that are not withdrawn and that the reader may read, oldest first}. Flags are labels too."""
    labels: dict[str, list[Label]] = {sample.pk: [] for sample in samples}
    rows = Label.objects.active().readable_by(reader).filter(sample__in=list(labels))
    for label in rows.order_by("created_at", "pk"):
        labels[label.sample].append(label)
    return labels


def load_siblings(samples: Sequence[Sample]) -> tuple[dict[GroupPlace, list[Sample]], Counter[GroupPlace]]:
    """{(step id, group): samples}, and the size of each group; empty for samples without a group."""
    wanted: dict[int, set[str]] = defaultdict(set)
    for sample in samples:
        if sample.group:
            wanted[sample.step_id].add(sample.group)
    shown = {sample.pk for sample in samples}
    siblings: dict[GroupPlace, list[Sample]] = defaultdict(list)
    sizes: Counter[GroupPlace] = Counter()
    if not wanted:
        return siblings, sizes
    same_group = reduce(or_, (Q(step=step, group__in=groups) for step, groups in wanted.items()))
    for row in Sample.objects.visible().filter(same_group, final=True).order_by("index", "ordinal", "pk"):
        group = (row.step_id, row.group)
        sizes[group] += 1
        if sizes[group] <= MAX_SIBLINGS or row.pk in shown:
            siblings[group].append(row)
    return siblings, sizes
