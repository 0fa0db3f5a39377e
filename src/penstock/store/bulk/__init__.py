"""Fast paths for batches. Everything here exists for speed; `appending` is the specification."""
