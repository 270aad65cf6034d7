"""Names of groups in a run, and which of its files holds each."""

import pathlib

# Which file of a run directory holds a group, by the group's first name; log.h5 has the others. Of
# another measure than the usual one -MEASURE stands behind both: ablation-mean/self is /ablation/self
# of ablation-mean.h5.
FILES = {"analysis": "analysis.h5", "roles": "analysis.h5", "ablation": "ablation.h5",
         "pruning": "pruning.h5"}


def is_result(path: pathlib.Path) -> bool:
    """Whether a file has the name of one that analyze, ablate or prune writes beside a log."""
    return path.suffix == ".h5" and f"{path.stem.partition('-')[0]}.h5" in FILES.values()


def kind_of(group: str) -> str:
    """The first name of a group without its measure: `ablation` of `ablation-mean/self`."""
    first = group.split("/")[0]
    kind = first.partition("-")[0]
    return kind if kind in FILES else first


def measure_of(group: str) -> str:
    """`-mean` of `ablation-mean/self`; of the usual measure nothing."""
    return group.split("/")[0].removeprefix(kind_of(group))


def file_of(group):
    """Which file of a run holds a group."""
    name = FILES.get(kind_of(group), "log.h5")
    return name.replace(".h5", f"{measure_of(group)}.h5")


def inside_of_file(group):
    """The name of a group in its file."""
    return kind_of(group) + group[len(group.split("/")[0]):]


def named(group, measure):
    """The name of a file's group in the run."""
    first, *rest = group.split("/")
    return "/".join([f"{first}-{measure}" if measure else first, *rest])
