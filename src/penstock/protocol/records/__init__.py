"""Stored records and their parts: encoding, batches, compression, message ids, pull answers."""
