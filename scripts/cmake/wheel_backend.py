"""Builds headlab for pip: scikit-build-core, over CMakeLists.txt, with the torch that the environment has.

pip asks the functions below for a wheel (PEP 517). They build in build/wheel-PYTHON-TORCH of the tree, which is
kept: the next time only what changed is compiled. torch is found as files and never imported, and pip is not asked
for one: a second torch beside the user's would be another library.
"""

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import site
import sys
import sysconfig

import scikit_build_core.build as backend

ROOT = pathlib.Path(__file__).resolve().parents[2]
TORCH = "2.11"
get_requires_for_build_wheel = backend.get_requires_for_build_wheel
get_requires_for_build_editable = backend.get_requires_for_build_editable
get_requires_for_build_sdist = backend.get_requires_for_build_sdist
build_sdist = backend.build_sdist


def site_folders() -> list[pathlib.Path]:
    """Where torch may be. pip runs this with the Python that it installs for, even where it builds apart from that
    Python's packages; other tools run it with one of their own, and VIRTUAL_ENV says what they install for."""
    if given := os.environ.get("HEADLAB_TORCH"):
        return [pathlib.Path(given)]
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    for name in "VIRTUAL_ENV", "CONDA_PREFIX":
        if base := os.environ.get(name):
            folders.append(sysconfig.get_path("purelib", "posix_prefix", {"base": base, "platbase": base}))
    return list(dict.fromkeys(map(pathlib.Path, folders)))


def version_in(folder: pathlib.Path) -> str | None:
    """The version of the torch there, with what it is built for: 2.11.0+cpu."""
    try:
        text = (folder / "torch/version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^__version__ = '(.*)'", text, re.M)
    return found and found[1]


def torch_there() -> tuple[pathlib.Path, str]:
    """The first site-packages with torch, and its version. SystemExit: there is none, or another version."""
    folders = site_folders()
    for folder in folders:
        if version := version_in(folder):
            break
    else:
        sys.exit(f"headlab is built with the torch of the environment, and {folders[0]} has none: "
                 f'pip install "torch=={TORCH}.*" first, or name a site-packages that has it: HEADLAB_TORCH=DIR')
    if not version.startswith(f"{TORCH}."):
        sys.exit(f'headlab needs torch {TORCH}, and {folder} has torch {version}: pip install "torch=={TORCH}.*"')
    return folder, version


def require_headers() -> None:
    headers = pathlib.Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        sys.exit(f"{headers}/Python.h is missing, which an extension of Python is compiled with: apt-get install "
                 f"python3-dev, or what has it for {sys.executable}")


def settings(given: dict | None) -> dict:
    """What scikit-build-core is told beside pyproject.toml; what the caller gave (pip install -C) comes first."""
    folder, version = torch_there()
    require_headers()
    if compiler := shutil.which("c++"):  # CMake's choice; scikit-build-core would take what Python was compiled with
        os.environ.setdefault("CXX", compiler)
    python = "cp{}{}".format(*sys.version_info)
    return {"build-dir": f"build/wheel-{python}-{version.replace('+', '-')}",
            "cmake.define.HEADLAB_PYTHON": sys.executable,
            "cmake.define.HEADLAB_TORCH_ROOT": str(folder.resolve()), **(given or {})}


@contextlib.contextmanager
def alone(chosen: dict):
    """One build at a time in a build tree; another waits."""
    folder = ROOT / chosen["build-dir"]
    folder.parent.mkdir(exist_ok=True)
    with open(folder.parent / f".lock-{folder.name}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    settings(config_settings)  # what is missing is said before pip fetches anything
    return backend.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    chosen = settings(config_settings)
    with alone(chosen):
        return backend.build_wheel(wheel_directory, chosen, metadata_directory)


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    settings(config_settings)
    return backend.prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    chosen = settings(config_settings)
    with alone(chosen):
        return backend.build_editable(wheel_directory, chosen, metadata_directory)
