"""JSON as Java's fastjson writes it: bare keys, objects as keys, references, lenient values."""
