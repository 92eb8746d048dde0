"""The empty document in which code of an answer runs: an opaque origin, no network."""
