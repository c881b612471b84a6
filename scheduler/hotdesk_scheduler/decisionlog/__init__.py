"""The record of decisions: what the core was asked and what it answered, so that `replay` can ask again (`replay.py`)."""
