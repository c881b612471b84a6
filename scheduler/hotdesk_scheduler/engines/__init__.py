"""Engines hold the truth and run pods; they never decide (design: one contract, several engines)."""
