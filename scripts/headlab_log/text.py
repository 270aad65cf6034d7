"""How tokens are shown, and what stands for them where a model looks at an image."""

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
