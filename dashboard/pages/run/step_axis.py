"""The x-scale that the strips of the overview share: step bars, replay timeline, events."""

from datetime import datetime

from dashboard.pages.common import StepScale, load_step_strip
from rolloutdeck.protocol import SPLITS
from rollouts.lib import CacheSize, cached_newest
from rollouts.models import Binding, Run
from rollouts.replay import load_replay_timeline
from rollouts.runs import load_run_events


def find_step_scale(run: Run) -> StepScale | None:
    """Returns None if the run has no step."""
    return load_step_scale(run.pk, run.created_at, run.version)


@cached_newest(CacheSize.STEP_STRIPS)
def load_step_scale(run_id: int, born: datetime, version: int) -> StepScale | None:
    """The version rises with every visible change, so it names the content."""
    run = Run.objects.get(pk=run_id)
    strips = [load_step_strip(run, split).list_steps() for split in SPLITS]
    run_events = load_run_events(run)
    ends = ([run_events.first_step], [run_events.last_step]) if run_events else ()
    return StepScale.from_steps(*strips, list_replay_steps(run), *ends)


def has_replay_timeline(run: Run) -> bool:
    return Binding.objects.filter(run=run).exists() or run.replays.exists()


def list_replay_steps(run: Run) -> list[int]:
    return [step.step for step in load_replay_timeline(run).steps] if has_replay_timeline(run) else []
