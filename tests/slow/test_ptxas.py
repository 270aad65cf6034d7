"""What nvcc makes of the kernels of a GPU: no register spills, and as many registers and as much shared memory as
tests/slow/ptxas.json says. HEADLAB_PTXAS=write writes that file anew."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/slow/ptxas.json"
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
SOURCES = sorted([*ROOT.glob("core/kernels/*.cu"), *ROOT.glob("variants/*/*.cu")])


def short(mangled):
    """The kernel's name and types: row_stats_kernel<d>, compose_forward_kernel<f,SoftmaxRow>."""
    name = re.search(r"\d+([a-z_]+_kernel)I([fd])(?:NS_\d+([A-Za-z]+Row)E)?", mangled)
    assert name, mangled
    return f"{name[1]}<{name[2]}{',' + name[3] if name[3] else ''}>"


def compiled(source, folder):
    """Of each kernel of a file: registers, spills in bytes, shared memory in bytes."""
    made = subprocess.run(
        [NVCC, "-std=c++20", f"-I{ROOT}", "-Werror", "cross-execution-space-call", "-gencode",
         "arch=compute_90,code=sm_90", "-Xptxas", "-v", "-c", source, "-o", folder / "kernels.o"],
        capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    kernels = {}
    for block in made.stderr.split("Compiling entry function '")[1:]:
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", block)]
        used = re.search(r"Used (\d+) registers", block)
        shared = re.search(r"(\d+) bytes smem", block)
        kernels[short(block.split("'")[0])] = {"registers": int(used[1]), "spills": sum(spills),
                                               "shared": int(shared[1]) if shared else 0}
    assert kernels, made.stderr
    return kernels


@pytest.mark.skipif(NVCC is None, reason="no nvcc here")
def test_kernels_need_what_the_table_says_and_spill_nothing(tmp_path):
    found = {str(source.relative_to(ROOT)): compiled(source, tmp_path) for source in SOURCES}
    if os.environ.get("HEADLAB_PTXAS") == "write":
        TABLE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    for source, kernels in found.items():
        for name, needs in kernels.items():
            assert needs["spills"] == 0, f"{source}: {name}"
    version = subprocess.run([NVCC, "--version"], capture_output=True, text=True, check=True).stdout
    if "release 13.0" not in version:
        pytest.skip("the table is of nvcc 13.0")
    assert found == json.loads(TABLE.read_text())
