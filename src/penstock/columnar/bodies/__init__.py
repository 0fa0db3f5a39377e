"""Bodies in Avro or Protobuf as Arrow columns."""
