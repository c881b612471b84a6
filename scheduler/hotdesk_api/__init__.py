"""What the parts of Hotdesk share: wire models, units, errors and the client. Nothing else crosses a folder."""
