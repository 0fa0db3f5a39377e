"""The data pipeline on Spark: source, sink, handlers on executors, archive, replay and repair."""
