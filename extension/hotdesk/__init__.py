"""Hotdesk for people: `%runai` magics, the `hotdesk` and `runai` commands, and the Python calls behind them."""
