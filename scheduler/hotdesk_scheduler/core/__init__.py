"""The pure core: a snapshot in, a plan out. No clock, no I/O, no logging (shared rules: scheduling.md)."""
