"""What client and server share: wire headers and limits, manifests, columns, compatibility, schedule.

Depends on: the standard library.
Invariant: a value that was ever on the wire keeps its meaning. The server accepts every released version.
"""

from rolloutdeck.protocol.columns import (
    COLUMN_PRESETS,
    COMMON_COLUMN_NAMES,
    JSON_TEXTS,
    JSON_TOKEN,
    RESPONSE_PARTS,
    REWARD_COLUMN,
    REWARD_PREFIX,
    choose_row_format,
    find_row_keys,
    find_samples_column,
    format_column_names,
    group_numbered_columns,
    guess_columns,
    has_generation_columns,
    has_only_tokens,
    has_response_part,
    is_generation_mapping,
    parse_column_mapping,
    parse_logged_columns,
)
from rolloutdeck.protocol.compatibility import (
    COMPATIBILITY_FACTS,
    REFUSE_FACTS,
    UNLIMITED_LENGTH,
    FactDifference,
    compare_facts,
    is_incompatible,
)
from rolloutdeck.protocol.guidance import (
    GUIDANCE_ACTIONS,
    GUIDANCE_BASELINES,
    GUIDANCE_TARGETS,
    KEY_SEPARATOR,
    NO_GUIDANCE,
    GuidanceRule,
    GuidanceRules,
    RowGuidance,
    parse_guidance,
)
from rolloutdeck.protocol.images import (
    DATA_URL_START,
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    ImageInfo,
    build_image_reference,
    decode_data_url,
    detect_image,
    encode_data_url,
)
from rolloutdeck.protocol.manifest import check_manifest, compute_artifact_key, count_manifest_bytes
from rolloutdeck.protocol.metric_rows import (
    METRIC_STEP_KEYS,
    find_metric_step,
    is_metric_row,
)
from rolloutdeck.protocol.sample_keys import (
    TURN_TOKEN,
    compute_prompt_key,
    compute_response_key,
    get_prompt_key,
    get_response_key,
    normalize_prompt,
)
from rolloutdeck.protocol.sample_texts import (
    NATIVE_COLUMNS,
    describe_json_type,
    describe_missing_response,
    describe_wrong_row,
    find_row_problem,
    find_text_problem,
    is_conversation,
    is_message,
    normalize_messages,
    parse_json_text,
)
from rolloutdeck.protocol.schedule import format_step_ranges, resolve_target, resolve_targets
from rolloutdeck.protocol.tokenizer import compute_tokenizer_fingerprint, find_tokenizer_file, load_vocabulary
from rolloutdeck.protocol.wire import (
    ARTIFACT_ROLES,
    FLAG_LABELS,
    HEARTBEAT_SECONDS,
    LABEL_SOURCES,
    LAUNCH_KEY_PATTERN,
    MAX_ARTIFACT_FILE_BYTES,
    MAX_DUMP_BYTES,
    MAX_EXPANSION_RATIO,
    MAX_JSON_BYTES,
    MAX_LINE_BYTES,
    MAX_PART_BYTES,
    MIN_WIRE_VERSION,
    MISMATCH_ACTIONS,
    PLAN_ACTIONS,
    PROJECT_HEADER,
    REPLAY_OUTCOMES,
    RESUME_HEADER,
    RUN_HEADER,
    SAMPLE_KEYS,
    SELECTED_ACTIONS,
    SELECTION_SOURCES,
    SERVER_HEADER,
    SHA256_PATTERN,
    SPLITS,
    STEP_KINDS,
    TOKEN_SCOPES,
    UID_PATTERN,
    WAITED_HEADER,
    WIRE_HEADER,
    WIRE_VERSION,
    Receipt,
    SpoolHeader,
    describe_wire_mismatch,
)

__all__ = [
    "ARTIFACT_ROLES", "COLUMN_PRESETS", "COMMON_COLUMN_NAMES", "COMPATIBILITY_FACTS", "DATA_URL_START", "FLAG_LABELS",
    "FactDifference", "GUIDANCE_ACTIONS", "GUIDANCE_BASELINES", "GUIDANCE_TARGETS", "GuidanceRule", "GuidanceRules",
    "HEARTBEAT_SECONDS", "ImageInfo", "JSON_TEXTS", "JSON_TOKEN", "KEY_SEPARATOR", "LABEL_SOURCES",
    "LAUNCH_KEY_PATTERN", "MAX_ARTIFACT_FILE_BYTES", "MAX_DUMP_BYTES", "MAX_EXPANSION_RATIO", "MAX_IMAGE_BYTES",
    "MAX_IMAGE_PIXELS", "MAX_JSON_BYTES", "MAX_LINE_BYTES", "MAX_PART_BYTES", "METRIC_STEP_KEYS", "MIN_WIRE_VERSION",
    "MISMATCH_ACTIONS", "NATIVE_COLUMNS", "NO_GUIDANCE", "PLAN_ACTIONS", "PROJECT_HEADER", "REFUSE_FACTS",
    "REPLAY_OUTCOMES", "RESPONSE_PARTS", "RESUME_HEADER", "REWARD_COLUMN", "REWARD_PREFIX", "RUN_HEADER", "Receipt",
    "RowGuidance", "SAMPLE_KEYS", "SELECTED_ACTIONS", "SELECTION_SOURCES", "SERVER_HEADER", "SHA256_PATTERN", "SPLITS",
    "STEP_KINDS", "SpoolHeader", "TOKEN_SCOPES", "TURN_TOKEN", "UID_PATTERN", "UNLIMITED_LENGTH", "WAITED_HEADER",
    "WIRE_HEADER", "WIRE_VERSION", "build_image_reference", "check_manifest", "choose_row_format", "compare_facts",
    "compute_artifact_key", "compute_prompt_key", "compute_response_key", "compute_tokenizer_fingerprint",
    "count_manifest_bytes", "decode_data_url", "describe_json_type", "describe_missing_response",
    "describe_wire_mismatch", "describe_wrong_row", "detect_image", "encode_data_url", "find_metric_step",
    "find_row_keys", "find_row_problem", "find_samples_column", "find_text_problem", "find_tokenizer_file",
    "format_column_names", "format_step_ranges", "get_prompt_key", "get_response_key", "group_numbered_columns",
    "guess_columns", "has_generation_columns", "has_only_tokens", "has_response_part", "is_conversation",
    "is_generation_mapping", "is_incompatible", "is_message", "is_metric_row", "load_vocabulary", "normalize_messages",
    "normalize_prompt", "parse_column_mapping", "parse_guidance", "parse_json_text", "parse_logged_columns",
    "resolve_target", "resolve_targets",
]  # fmt: skip
