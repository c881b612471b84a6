"""JupyterHub's side of Hotdesk: configuration, roles, pages, and `make up` on one machine."""
