"""What kinds of heads there are, and what may be asked of each."""

import dataclasses

from . import _C


@dataclasses.dataclass(frozen=True)
class Option:
    name: str
    type: str
    default: str  # as it is written in YAML; "": it follows from the rest, as the help says
    limits: str
    help: str


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of heads; print() it."""

    name: str
    summary: str
    options: tuple[Option, ...]
    promises: dict[str, bool]  # causal, bidirectional, cross, decodes, grouped, rotary, windows, biases

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.summary}", ""]
        for option in self.options:
            usual = f" = {option.default}" if option.default else ""
            limits = f" ({option.limits})" if option.limits else ""
            lines.append(f"  {option.name}: {option.type}{usual}{limits}")
            lines.append(f"      {option.help}")
        cannot = [name for name, can in self.promises.items() if not can]
        lines += ["", "  takes: " + ", ".join(name for name, can in self.promises.items() if can)]
        if cannot:
            lines.append("  takes not: " + ", ".join(cannot))
        return "\n".join(lines)


def kinds() -> list[str]:
    """The kinds of heads, sorted; kinds of your own that are compiled in, too."""
    return _C.kinds()


def describe(kind: str) -> Kind:
    """What a kind is, its options with their defaults, and what it promises. ValueError names the nearest
    kind."""
    options = tuple(Option(*words) for words in _C.options(kind))
    return Kind(kind, _C.summary(kind), options, _C.traits(kind, "{}"))
