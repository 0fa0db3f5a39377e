"""Stored messages in bytes: layout, codec, properties, ids, compression, batches."""
