"""Small realistic mistakes, one at a time, and whether the tests notice them."""
