"""Message properties on the wire; the grammar itself is in ``penstock.model.properties``."""

from penstock.model.properties import (
    MAX_PROPERTIES_BYTES,
    encode_properties,
    format_properties,
    get_property,
    parse_properties,
)

__all__ = [
    "MAX_PROPERTIES_BYTES",
    "encode_properties",
    "format_properties",
    "get_property",
    "parse_properties",
]
