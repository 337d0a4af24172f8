"""What a sample is: the record type, its identity, its Parquet body, its index row, its export.

Depends on: the models and storage.
Invariant: the id of a sample depends only on what was recorded, so it survives a re-index, a restore and a move
to another database.
"""

from rolloutdeck.protocol import describe_json_type
from rollouts.samples.bodies import (
    MISSING_BODY_MESSAGE,
    BodyReader,
    SampleBody,
    load_bodies,
    load_body,
    load_texts,
    open_body_file,
    read_ahead,
    read_bodies,
    read_dump_columns,
    scan_dump_rows,
    scan_dump_rows_in_file,
)
from rollouts.samples.content_keys import COPY_MARK, SampleContent, load_contents
from rollouts.samples.export import (
    EXPORT_SCHEMA,
    DrainableBuffer,
    dump_json,
    iterate_full_samples,
    load_exported_labels,
    prefetch_step_relations,
    serialize_full_sample,
    serialize_index_row,
)
from rollouts.samples.identity import (
    SampleIdGenerator,
    compute_content_key,
    get_identity_texts,
    take_earlier_count,
)
from rollouts.samples.images import (
    IMAGE_KEYS,
    IMAGE_PART_TYPES,
    SampleImage,
    extract_images,
    list_images,
    list_part_images,
    split_shared_images,
)
from rollouts.samples.index_rows import (
    FIELD_POSITIONS,
    IndexRow,
    IndexRowBuilder,
    IntermediateTracker,
    ResponseTraits,
    TrajectoryPosition,
    build_trajectory_key,
    fill_missing_values,
    insert_index_rows,
)
from rollouts.samples.parquet import (
    BODY_SCHEMA_VERSION,
    FIXED_FIELDS,
    INDEX_ROW_COLUMNS,
    REWARD_METADATA,
    BodyLayout,
    BodyWriter,
    build_records,
    is_json_column,
    list_reward_columns,
)
from rollouts.samples.record import LineProblem, MetricPoint, Record, SkippedRow
from rollouts.samples.rescore_blocks import (
    RescoreResult,
    load_rescore_values,
    load_results,
    remove_missing_results,
    rename_results,
    restore_numbers,
    store_results,
)
from rollouts.samples.responses import (
    NAME_MASK,
    NUMBER_MASK,
    PROPERTIES_VERSION,
    PROPERTY_CATALOG,
    ROWS_VERSION,
    TEXT_PROPERTY_BITS,
    ResponseScan,
    Template,
    UnitTestCase,
    UnitTestResults,
    compute_text_properties,
    continues_answer,
    extract_final_answer,
    extract_text_answer,
    find_templates,
    parse_unit_tests,
    read_ground_truth,
)
from rollouts.samples.sample_tables import (
    BATCH_CHARS,
    BATCH_ROWS,
    KnownRows,
    StepPlace,
    export_jsonl,
    export_parquet,
    iterate_sample_tables,
    open_parquet_writer,
    select_raw,
    to_arrow,
)
from rollouts.samples.timing import SampleTiming, read_timing
from rollouts.samples.values import (
    count_chars,
    is_number,
    parse_json,
    text_to_float,
    to_float,
    to_integer,
    to_json,
    to_text,
)

__all__ = [
    "BATCH_CHARS", "BATCH_ROWS", "BODY_SCHEMA_VERSION", "COPY_MARK", "EXPORT_SCHEMA", "FIELD_POSITIONS",
    "FIXED_FIELDS", "IMAGE_KEYS", "IMAGE_PART_TYPES", "INDEX_ROW_COLUMNS", "MISSING_BODY_MESSAGE", "NAME_MASK",
    "NUMBER_MASK", "PROPERTIES_VERSION", "PROPERTY_CATALOG", "REWARD_METADATA", "ROWS_VERSION",
    "TEXT_PROPERTY_BITS", "BodyLayout", "BodyReader", "BodyWriter", "DrainableBuffer", "IndexRow",
    "IndexRowBuilder", "IntermediateTracker", "KnownRows", "LineProblem", "MetricPoint", "Record",
    "RescoreResult", "ResponseScan", "ResponseTraits", "SampleBody", "SampleContent", "SampleIdGenerator",
    "SampleImage", "SampleTiming", "SkippedRow", "StepPlace", "Template", "TrajectoryPosition", "UnitTestCase",
    "UnitTestResults", "build_records", "build_trajectory_key", "compute_content_key", "compute_text_properties",
    "continues_answer", "count_chars", "describe_json_type", "dump_json", "export_jsonl", "export_parquet",
    "extract_final_answer", "extract_images", "extract_text_answer", "fill_missing_values", "find_templates",
    "get_identity_texts", "insert_index_rows", "is_json_column", "is_number", "iterate_full_samples",
    "iterate_sample_tables", "list_images", "list_part_images", "list_reward_columns", "load_bodies", "load_body",
    "load_contents", "load_exported_labels", "load_rescore_values", "load_results", "load_texts",
    "open_body_file", "open_parquet_writer", "parse_json", "parse_unit_tests", "prefetch_step_relations",
    "read_ahead", "read_bodies", "read_dump_columns", "read_ground_truth", "read_timing",
    "remove_missing_results", "rename_results", "restore_numbers", "scan_dump_rows", "scan_dump_rows_in_file",
    "select_raw", "serialize_full_sample", "serialize_index_row", "split_shared_images", "store_results",
    "take_earlier_count", "text_to_float", "to_arrow", "to_float", "to_integer", "to_json", "to_text",
]  # fmt: skip
