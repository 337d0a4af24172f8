"""What several pages share: URL state, lookups, panels, rows, strips, formatting, error pages.

Depends on: `dashboard.permissions`, `dashboard.assets` and the domain; no page.
Invariant: every text of a model is escaped here, once.
"""

from dashboard.pages.common.audit_text import VERB_NAMES, describe_audit_entry
from dashboard.pages.common.disk_kinds import list_disk_kinds
from dashboard.pages.common.error_pages import render_error_page, render_unavailable_page
from dashboard.pages.common.estimates import format_change, format_estimate, format_share, render_estimate_scale
from dashboard.pages.common.formatting import (
    ANSWER_PATTERN,
    LONE_SURROGATE_PATTERN,
    MAX_MARKED_CHARS,
    HighlightedTerms,
    find_answers,
    find_query_words,
    format_number,
    format_percent,
    format_run_status,
    format_seconds,
    format_signed_number,
    grade_score,
    needs_blocks,
    render_code_spans,
    render_highlighted_text,
    render_markdown,
    render_note,
    render_query_error,
    render_score,
    render_snippet,
    render_text,
    render_text_end,
    render_text_line,
    render_time,
    replace_control_characters,
    split_into_blocks,
)
from dashboard.pages.common.group_links import GROUP_NAME_PLACEHOLDER, GroupLinks
from dashboard.pages.common.images import ShownImage, build_shown_images
from dashboard.pages.common.keyboard import (
    LATEST_STEP_PAGES,
    PAGE_TITLES,
    PERMALINK_PAGES,
    render_footer,
    render_help_dialog,
)
from dashboard.pages.common.lookups import (
    LAST_PROJECT_COOKIE,
    YEAR_SECONDS,
    attempt_or_404,
    choose_project,
    find_named_step,
    find_projects,
    find_step,
    get_signed_in_user,
    load_blind_queues,
)
from dashboard.pages.common.panels import (
    MIN_STREAMED_CHARS,
    DeferredContent,
    compute_etag,
    get_requested_panel,
    get_shown_step,
    render_page_or_panel,
    render_with_deferred,
    set_cache_headers,
)
from dashboard.pages.common.replay_states import REPLAY_STATE_NAMES, SEGMENT_STATUSES
from dashboard.pages.common.responses import (
    format_form_error,
    get_return_url,
    is_script_request,
    redirect_see_other,
    respond_error,
    respond_success,
)
from dashboard.pages.common.row_html import render_sample_marks, render_sample_rows, render_step_bars
from dashboard.pages.common.sample_rows import (
    FIRST_PAGE_ROWS,
    NEXT_PAGE_ROWS,
    SAMPLE_COLUMNS,
    SampleRow,
    build_sample_rows,
    find_filled_columns,
    has_text,
)
from dashboard.pages.common.sparklines import build_polyline_points, build_scaled_points
from dashboard.pages.common.status_strip import (
    SEGMENT_HEIGHTS,
    StatusSegment,
    StatusStrip,
    build_status_strip,
    render_status_strip,
)
from dashboard.pages.common.step_scale import StepScale, space_ticks
from dashboard.pages.common.step_strip import (
    StepStrip,
    build_split_param,
    find_default_split,
    find_step_kind,
    load_step_strip,
)
from dashboard.pages.common.url_state import (
    StepUrlState,
    UrlState,
    clean_param,
    parse_integer_param,
    parse_row_offset,
    parse_step_number,
)

__all__ = [
    "ANSWER_PATTERN", "FIRST_PAGE_ROWS", "GROUP_NAME_PLACEHOLDER", "LAST_PROJECT_COOKIE", "LATEST_STEP_PAGES",
    "LONE_SURROGATE_PATTERN", "MAX_MARKED_CHARS", "MIN_STREAMED_CHARS", "NEXT_PAGE_ROWS", "PAGE_TITLES",
    "PERMALINK_PAGES", "REPLAY_STATE_NAMES", "SAMPLE_COLUMNS", "SEGMENT_HEIGHTS", "SEGMENT_STATUSES",
    "VERB_NAMES", "YEAR_SECONDS", "DeferredContent", "GroupLinks", "HighlightedTerms", "SampleRow", "ShownImage",
    "StatusSegment", "StatusStrip", "StepScale", "StepStrip", "StepUrlState", "UrlState", "attempt_or_404",
    "build_polyline_points", "build_sample_rows", "build_scaled_points", "build_shown_images",
    "build_split_param", "build_status_strip", "choose_project", "clean_param", "compute_etag",
    "describe_audit_entry", "find_answers", "find_default_split", "find_filled_columns", "find_named_step",
    "find_projects", "find_query_words", "find_step", "find_step_kind", "format_change", "format_estimate",
    "format_form_error", "format_number", "format_percent", "format_run_status", "format_seconds", "format_share",
    "format_signed_number", "get_requested_panel", "get_return_url", "get_shown_step", "get_signed_in_user",
    "grade_score", "has_text", "is_script_request", "list_disk_kinds", "load_blind_queues", "load_step_strip",
    "needs_blocks", "parse_integer_param", "parse_row_offset", "parse_step_number", "redirect_see_other",
    "render_code_spans", "render_error_page", "render_estimate_scale", "render_footer", "render_help_dialog",
    "render_highlighted_text", "render_markdown", "render_note", "render_page_or_panel", "render_query_error",
    "render_sample_marks", "render_sample_rows", "render_score", "render_snippet", "render_status_strip",
    "render_step_bars", "render_text", "render_text_end", "render_text_line", "render_time",
    "render_unavailable_page", "render_with_deferred", "replace_control_characters", "respond_error",
    "respond_success", "set_cache_headers", "space_ticks", "split_into_blocks",
]  # fmt: skip
