"""One file per way to train."""
