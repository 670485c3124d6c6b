"""Evidence: what a run leaves behind. Files with a hash, captures of the last page, and no secrets in either."""
