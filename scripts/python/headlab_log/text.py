"""How texts of a log are shown: tokens, what stands for them where a model looks at an image, and
what a terminal or a shell would obey."""

import re
import shlex
from collections.abc import Sequence

import numpy as np
import xarray as xr

SHOWN = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "": "∅"}


def visible(token: str) -> str:
    """A token with white space made visible; what cannot be printed as its code.

    >>> hl.visible("to be"), hl.visible("\\n")
    ('to␣be', '⏎')
    """
    if token == "":
        return SHOWN[""]
    return "".join(SHOWN.get(c, c if c.isprintable() else f"\\x{ord(c):02x}") for c in token)


# Control characters but new line and tab, those that turn the direction of a line, and what stands
# for bytes that are not UTF-8.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object) -> str:
    """A text with visible codes for what a terminal would obey, as `headlab` itself prints it.

    >>> from headlab_log.text import printable
    >>> printable("a\\x1b[2Jb")
    'a\\\\u001b[2Jb'
    """
    return OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text))


def shell_word(text: object) -> str:
    """One word of a command that a message suggests, as bash, zsh and fish take it.

    >>> from headlab_log.text import shell_word
    >>> shell_word("runs/a b")
    "'runs/a b'"
    """
    word = str(text)
    if printable(word) == word and not set("\n\t") & set(word):
        return shlex.quote(word)
    codes = (f"\\x{byte:02x}" if byte < 32 or byte > 126 or chr(byte) in "'\\" else chr(byte)
             for byte in word.encode(errors="surrogateescape"))
    return f"$'{''.join(codes)}'"


def token_texts(maps: xr.Dataset, token: xr.DataArray, known: Sequence[str]) -> np.ndarray:
    """Texts of the tokens at queries or keys, (probe, position).

    Of one without a text (numbers) the number, of padding nothing; where there is an image and no
    token at all, `class`, or `row,column` of the patch at the position.
    """
    if "image" in maps and (token < 0).all():
        texts = places(maps.image, maps[token.dims[1]].values)
        return np.tile(np.array(texts, dtype=object), (len(token), 1))
    texts = [known[t] if 0 <= t < len(known) else str(t) if t >= 0 else ""
             for t in token.values.flat]
    return np.array(texts, dtype=object).reshape(token.shape)


def places(image, positions):
    """Of positions in an image, whose attributes say where its patches begin."""
    ahead, columns = image.attrs["cls_tokens"], image.sizes["column"] // image.attrs["patch"]
    return ["class" if position < ahead else "{},{}".format(*divmod(position - ahead, columns))
            for position in positions]
