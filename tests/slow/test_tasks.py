"""Every task at the size of two cores, trained until it must be solved, or where plain heads do not
solve it, far above chance: a point of at most three minutes each. Run by `scripts/test --slow`; not part
of the usual tests.
"""

import json
import os
import subprocess
import time

import pytest

from conftest import ROOT, program

# config, overrides, metric, at least, at most.
POINTS = {
    "mqar_64_4_small_mha": ("example_accuracy", 0.97, 1, []),
    "mqar_64_4_small_mha, one layer without positions": (
        "example_accuracy", 0, 0.3, ["model.layers=1", "model.position=none"]),
    "memorization_small_mha": ("macro_accuracy", 0.99, 1, []),
    "selective_copying_small_mha": ("macro_accuracy", 0.99, 1, []),
    "in_context_recall_small_mha": ("macro_accuracy", 0.97, 1, []),
    "noisy_recall_small_mha": ("macro_accuracy", 0.97, 1, []),
    "compression_small_mha": ("macro_accuracy", 0.35, 1, []),  # chance 0.13; published size: 0.516
    "fuzzy_recall_small_mha": ("macro_accuracy", 0.3, 1, []),  # chance 0.13; published size: 0.298
}


@pytest.mark.parametrize("point", POINTS)
def test_a_model_of_two_layers_reaches_it(point, tmp_path):
    config = point.split(",")[0]
    metric, least, most, overrides = POINTS[point]
    began = time.monotonic()
    done = subprocess.run(
        [program(), "run", str(ROOT / f"configs/{config}.yaml"), "--out", str(tmp_path), "--json",
         "train.threads=1", "log.attention.every=0", "log.stats_every=0", *overrides],
        capture_output=True, text=True, timeout=900,
        env={**os.environ, "GOMP_SPINCOUNT": "1000"})
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print(f"{point}: {result[f'val/{metric}']:.4f} in {time.monotonic() - began:.0f} s")
    assert least <= result[f"val/{metric}"] <= most
