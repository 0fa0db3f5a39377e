"""Stored records to and from Arrow, without Spark."""
