"""How tokens are shown."""

SHOWN = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "∅"}


def visible(token: str) -> str:
    """A token with white space made visible; what cannot be printed as its code.

    >>> hl.visible("to be"), hl.visible("\\n")
    ('to␣be', '⏎')
    """
    if token == "":
        return SHOWN[""]
    return "".join(SHOWN.get(c, c if c.isprintable() else f"\\x{ord(c):02x}") for c in token)
