"""core and variants are a library of their own: position independent, and without the libraries that
only experiments need."""

import ctypes
import pathlib
import re
import subprocess

from conftest import ROOT, program

LIBRARY = pathlib.Path(program()).parent / "libheadlab_core_alone.so"


def needed_by(binary):
    said = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[lib(\w+)", said))


def test_core_links_what_it_includes_and_no_more():
    only_of_experiments = needed_by(program()) - needed_by(LIBRARY)
    assert {name.partition("_")[0] for name in only_of_experiments} == {"hdf5", "crypto", "z"}


def test_core_and_variants_load_into_a_process_of_python():
    count = ctypes.CDLL(str(LIBRARY)).headlab_count_kinds
    count.restype = ctypes.c_size_t
    assert count() == len({path.stem for path in (ROOT / "variants").iterdir()} - {"families"})
