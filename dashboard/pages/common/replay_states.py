"""The states of the steps of a replay: their names, and how the status strip draws them."""

from typing import Final

from django.utils.translation import gettext_noop as N_

REPLAY_STATE_NAMES: Final = {
    "replayed": N_("replayed"),
    "generated": N_("generated"),
    "refused": N_("refused"),
    "planned": N_("planned, not reported yet"),
    "none": N_("generated (not in plan)"),
}
# A step that the plan replays and that was not reported is drawn like a planned one.
SEGMENT_STATUSES: Final = {
    "replayed": "hit", "generated": "miss", "refused": "refused", "planned": "planned", "none": "none"
}  # fmt: skip
