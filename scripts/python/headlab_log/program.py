"""What the program headlab is called by, in the commands that are shown."""

import os


def program_name() -> str:
    """HEADLAB_COMMAND, which the scripts of headlab's tree set to what works when pasted; else
    "headlab"."""
    return os.environ.get("HEADLAB_COMMAND") or "headlab"
