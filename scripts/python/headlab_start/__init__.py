"""The command `headlab` of the package: starts the program, bin/headlab of headlab.

A package of its own, because importing anything of headlab imports torch, which takes seconds.
"""

import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import sys

TORCH = "2.11"  # what the program links


def folders_of(package: str) -> list[pathlib.Path]:
    found = importlib.util.find_spec(package)
    return [pathlib.Path(folder) for folder in found.submodule_search_locations or ()] if found else []


def torch_folder() -> pathlib.Path:
    """Where torch is. SystemExit: nowhere, or it is another version."""
    for folder in folders_of("torch"):
        if (folder / "lib/libtorch_cpu.so").is_file():
            version = re.search(r"^__version__ = '(.*)'", (folder / "version.py").read_text(encoding="utf-8"), re.M)[1]
            if version.startswith(f"{TORCH}."):
                return folder
            sys.exit(f'headlab is built with torch {TORCH}, here is torch {version}: pip install "torch=={TORCH}.*"')
    sys.exit(f'headlab is built with torch {TORCH}, and here is none: pip install "torch=={TORCH}.*"')


def environment(program: pathlib.Path, torch: pathlib.Path) -> dict[str, str]:
    """The program finds torch beside its package; one in another site directory is named to the loader. It prints
    commands as the caller can type them, and runs headlab-log, which is where this command is."""
    called = pathlib.Path(sys.argv[0]).absolute()
    found = shutil.which(called.name)
    on_path = found is not None and os.path.samefile(found, called)
    changed = {"HEADLAB_COMMAND": called.name if on_path else shlex.quote(str(called)),
               "HEADLAB_SCRIPTS": str(called.parent)}
    if not os.path.samefile(torch.parent, program.parents[2]):
        paths = [str(torch / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
        changed["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
    return {**os.environ, **changed}


def main() -> None:
    for folder in folders_of("headlab"):
        program = folder / "bin/headlab"
        if program.is_file():
            os.execve(program, [str(program), *sys.argv[1:]], environment(program, torch_folder()))
    sys.exit("the program of headlab is not in this environment: pip install . in a clone of headlab puts it there")
