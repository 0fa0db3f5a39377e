"""JSON as Java's fastjson writes it: unquoted keys, references, lenient values."""
