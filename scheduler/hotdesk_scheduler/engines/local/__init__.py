"""The local engine: one machine, SQLite, processes under supervisors. `shutdown.stop_everything` ends its pods when nobody runs it."""
