# Read by every IPython of the environment Hotdesk is installed in. In a Hotdesk workspace it loads `%runai` by itself; elsewhere it
# does nothing. It appends to `extra_extensions`, which a user's own profile hardly ever sets, so profiles keep working as they are.
import os

if os.environ.get("HOTDESK_WORKSPACE"):
    c.InteractiveShellApp.extra_extensions.append("hotdesk")  # type: ignore[name-defined]  # noqa: F821  IPython runs this file with `c` defined
