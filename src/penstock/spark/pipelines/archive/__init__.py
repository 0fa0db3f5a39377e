"""A topic as Parquet: what an archive holds, how it is committed to, and how it is read."""
