"""Tables with free column names: CSV, JSONL, Parquet, Arrow."""
