"""Statistics of heads from explicit attention weights, by the formulas of the statistics table: what tests of
headlab.watch compare with. float64, example by example."""

import numpy as np
import torch

PLACES = {"mean_distance", "signed_offset", "offset_variance", "prev_token", "next_token", "self_token", "first_token",
          "argmax_distance", "positional_share", "positional_offset", "sink_rate"}


class ByHand:
    """Pools the rows of calls of one layer. What is not handed over has no value."""

    def __init__(self, heads: int, causal: bool, places: bool = True) -> None:
        self.heads, self.causal, self.places = heads, causal, places
        self.rows: dict[str, list[list[float]]] = {}
        self.offsets: list[list[int]] = [[] for _ in range(heads)]

    def add(self, a, allowed, queries, keys, z=None, out=None, v=None, weight=None):
        """a, z [B,H,T,S]; allowed bool [B,H,T,S]; queries [B,T], keys [B,S] bool: what is no padding; out
        [B,H,T,e], v [B,H,S,e], weight [D,H*e]."""
        numbers = [None if t is None else t.detach().double().numpy() for t in (a, z, out, v, weight)]
        a, z, out, v, weight = numbers
        allowed = np.broadcast_to(allowed.numpy(), a.shape)
        for b in range(len(a)):
            q, k = np.flatnonzero(queries[b].numpy()), np.flatnonzero(keys[b].numpy())
            for h in range(self.heads):
                norms = None
                if weight is not None:
                    e = v.shape[-1]
                    norms = np.linalg.norm(v[b, h][k] @ weight[:, h * e:(h + 1) * e].T, axis=1)
                first = [self._row(h, n, a[b, h, i][k], allowed[b, h, i][k], len(k), z if z is None else z[b, h, i][k],
                                   out if out is None else out[b, h, i], norms) for n, i in enumerate(q)]
                first = [number for number in first if number is not None]
                if first:
                    self._count("sink_rate", h, np.mean(first) > 0.3)
            self._divergence(a[b][:, q][:, :, k], allowed[b][:, q][:, :, k])
        return self

    def _count(self, name, h, number):
        self.rows.setdefault(name, [[] for _ in range(self.heads)])[h].append(float(number))

    def _row(self, h, i, a, allowed, n, z, out, norms):
        """The weight on the first key; None: the row does not count."""
        if not allowed.any():
            return None
        a = np.where(allowed, a, 0.0)
        j = np.arange(n)
        entropy = -np.sum(a[a > 0] * np.log(a[a > 0]))
        found = {"entropy": entropy, "max_weight": a.max(), "confidence": a.max(),
                 "participation_ratio": 1 / np.sum(a**2), "mean_distance": np.sum(a * abs(i - j)),
                 "signed_offset": np.sum(a * (j - i)), "self_token": a[i] if i < n else 0.0, "first_token": a[0],
                 "offset_variance": np.sum(a * (j - i) ** 2) - np.sum(a * (j - i)) ** 2,
                 "argmax_distance": abs(i - a.argmax())}
        if allowed.sum() >= 2:
            found["entropy_normalized"] = entropy / np.log(allowed.sum())
        if i >= 1:
            found["prev_token"] = a[i - 1] if i - 1 < n else 0.0
        if not self.causal and i + 1 < n:
            found["next_token"] = a[i + 1]
        if z is not None:
            seen = z[allowed]
            found["lse"] = seen.max() + np.log(np.sum(np.exp(seen - seen.max())))
            self.rows.setdefault("max_logit", [[-np.inf] for _ in range(self.heads)])
            self.rows["max_logit"][h] = [max(self.rows["max_logit"][h][0], seen.max())]
        if out is not None:
            found["output_norm"] = np.linalg.norm(out)
        if norms is not None:
            found["value_weighted_norm"] = np.sum(a * norms)
        for name, number in found.items():
            self._count(name, h, number)
        self.offsets[h].append(int(a.argmax()) - i)
        return a[0]

    def _divergence(self, a, allowed):
        def entropy(p):
            return -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), axis=-1)

        a = np.where(allowed, a, 0.0)
        pairs = [[self.rows.setdefault("js", [[[] for _ in range(self.heads)] for _ in range(self.heads)])[h][g]
                  for g in range(self.heads)] for h in range(self.heads)]
        for h in range(self.heads):
            for g in range(self.heads):
                both = allowed[h].any(-1) & allowed[g].any(-1)
                js = entropy((a[h] + a[g]) / 2) - (entropy(a[h]) + entropy(a[g])) / 2
                pairs[h][g].extend(js[both])

    def values(self) -> dict[str, np.ndarray]:
        found = {}
        for name, rows in self.rows.items():
            if self.places or name not in PLACES:
                mean = np.vectorize(lambda numbers: np.mean(numbers) if len(numbers) else np.nan, otypes=["f8"])
                cells = np.empty((self.heads, self.heads) if name == "js" else self.heads, object)
                for place in np.ndindex(cells.shape):
                    cells[place] = rows[place[0]][place[1]] if name == "js" else rows[place[0]]
                found[name] = mean(cells)
        if self.places:
            shares = [_commonest(offsets) for offsets in self.offsets]
            found["positional_share"], found["positional_offset"] = map(np.array, zip(*shares))
        return found


def _commonest(offsets):
    counts = {r: offsets.count(r) for r in set(offsets)}
    best = max(counts, key=lambda r: (counts[r], -abs(r), -r))
    return counts[best] / len(offsets), best


def weights_of(q, k, scale, allowed=None, bias=None):
    """(scores, weights) [B,H,T,S] of q [B,H,T,d] and k [B,H,S,d]; a row without an allowed key has weights 0."""
    z = q.double() @ k.double().transpose(2, 3) * scale
    if bias is not None:
        z = z + bias.double()
    hidden = z if allowed is None else z.masked_fill(~allowed, float("-inf"))
    return z, torch.softmax(hidden, -1).nan_to_num(0)
