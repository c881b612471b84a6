"""JupyterHub's configuration file for Hotdesk on one machine: `jupyterhub -f hub/jupyterhub_config.py`, or `hotdesk-hub up`."""

from hotdesk_hub.config import configure

configure(c)  # type: ignore[name-defined]  # noqa: F821  JupyterHub runs this file with `c` defined
