"""`headlab bench --peers` with a real Python: what torch.compile and FlexAttention make of a layer takes minutes."""

import json

from conftest import headlab
from transformers_testing import bench_python


def test_every_peer_gives_the_numbers_of_our_layers():
    bench_python()
    found = json.loads(headlab("bench", "mha", "{kind: sigmoid}", "{kind: entmax}", "talking", "--shape", "2x64x64x4",
                               "--seconds", 0.001, "--rounds", 1, "--threads", 1, "--peers", "--json"))
    reasons = {(row["kind"], row["path"], name): row[name]["reason"] for row in found["shapes"][0]["rows"]
               if row["source"] == "python" for name in ("forward", "both") if "reason" in row[name]}
    assert reasons == {("mha", "flex", "both"): "FlexAttention cannot train on a CPU"}
