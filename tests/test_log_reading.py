"""Python's readers open a log that headlab_write_log wrote: live beside its writer, and closed.

Run by pytest with scripts/requirements.txt installed; HEADLAB_BUILD_DIR names the build directory.
"""

import os
import pathlib
import re
import shutil
import subprocess

import h5py
import numpy as np
import pytest
import xarray as xr

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = np.arange(0, 50, 10)
MAP_STEPS = np.array([0, 20, 40])
LAYERS, HEADS = np.array([0, 2]), np.array([0, 1, 3])
QUERY, KEY = np.arange(5), np.arange(6)
QUERY_LENGTH, KEY_LENGTH = np.array([5, 3]), np.array([6, 4])
VOCABULARY = ["<pad>", "a", "été", "<0xFF><0x00>"]
EXACT = 1 / 131068 + 1e-12  # half a packed step


def writer():
    given = os.environ.get("HEADLAB_BUILD_DIR")
    folders = [pathlib.Path(given)] if given else sorted((ROOT / "build").glob("*"))
    found = [f / "headlab_write_log" for f in folders if (f / "headlab_write_log").is_file()]
    if not found:
        pytest.fail("headlab_write_log is not built (HEADLAB_BUILD_DIR names the build directory)")
    return str(max(found, key=lambda f: f.stat().st_mtime))


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("log") / "log.h5")
    subprocess.run([writer(), path], check=True)
    return path


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A log whose writer has flushed its rows and still holds the file."""
    path = str(tmp_path_factory.mktemp("live") / "log.h5")
    process = subprocess.Popen(
        [writer(), path, "--pause"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    yield path
    assert process.poll() is None, "the writer ended before the readers had read"
    process.communicate("")
    assert process.returncode == 0


def open_group(path, group, engine):
    if engine == "live":
        return xr.open_dataset(path, group=group, engine="h5netcdf", driver_kwds={"swmr": True})
    return xr.open_dataset(path, group=group, engine=engine)


@pytest.fixture(params=["live", "h5netcdf", "netcdf4"])
def opened(request):
    path = request.getfixturevalue("live" if request.param == "live" else "closed")
    return lambda group: open_group(path, group, request.param)


def expected_weights(scale):
    step, probe, layer, head, query, key = np.meshgrid(
        MAP_STEPS, np.arange(2), LAYERS, HEADS, QUERY, KEY, indexing="ij"
    )
    code = ((step + 1) * (probe + 2) * (layer + 3) * (head + 5) + (query + 7) * (key + 11)) % 98
    there = (query < QUERY_LENGTH[probe]) & (key < KEY_LENGTH[probe])
    return np.where(there, scale * code / 97, np.nan)


def expected_entropy():
    step, layer, head = np.meshgrid(STEPS, np.arange(3), np.arange(4), indexing="ij")
    return step + layer + head / 8


def test_scalars_have_the_values_that_were_written(opened):
    with opened("scalars") as scalars:
        np.testing.assert_array_equal(scalars.step, STEPS)
        np.testing.assert_array_equal(scalars.tokens, STEPS * 100)
        np.testing.assert_array_equal(scalars.wall_time, STEPS / 4)
        np.testing.assert_allclose(scalars.train_loss, 4 - STEPS / 20, rtol=1e-7)
        assert scalars.train_loss.dtype == np.float32
        assert scalars.step.dtype == np.int64


def test_evaluations_have_steps_of_their_own(opened):
    with opened("eval") as evaluations:
        np.testing.assert_array_equal(evaluations.step, MAP_STEPS)
        np.testing.assert_allclose(evaluations.val_loss, 5 - MAP_STEPS / 20, rtol=1e-7)


def test_statistics_lie_on_dimension_coordinates_and_pruned_heads_are_missing(opened):
    with opened("heads/encoder_self") as heads:
        assert heads.entropy.dims == ("step", "layer", "head")
        assert heads.js.dims == ("step", "layer", "head", "head2")
        assert heads.residual_ratio.dims == ("step", "layer")
        coordinates = {"step": STEPS, "layer": range(3), "head": range(4), "head2": range(4)}
        for name, values in coordinates.items():
            np.testing.assert_array_equal(heads.indexes[name], list(values))
        alive = np.ones((5, 3, 4), bool)
        alive[:, 1, 1] = False
        np.testing.assert_array_equal(heads.head_mask, alive)
        np.testing.assert_array_equal(heads.entropy, np.where(alive, expected_entropy(), np.nan))
        pair = heads.js.sel(step=20, layer=1)
        assert np.isnan(pair.sel(head=1)).all() and np.isnan(pair.sel(head2=1)).all()
        assert pair.sel(head=3, head2=2) == 20 * (3 - 2) + 1
        assert heads.entropy.sel(step=30, layer=2, head=3) == 30 + 2 + 3 / 8


def test_packed_maps_decode_to_within_half_a_step(opened):
    with opened("attention/encoder_self") as attention:
        expected = expected_weights(1)
        weights = attention.weights.astype(np.float64).values
        assert attention.weights.dims == ("step", "probe", "layer", "head", "query", "key")
        np.testing.assert_array_equal(np.isnan(weights), np.isnan(expected))
        rounding = 0 if attention.weights.dtype == np.float64 else np.finfo(np.float32).eps
        assert np.nanmax(abs(weights - expected)) <= EXACT + rounding
        assert np.nanmax(weights) == 1 and np.nanmin(weights) == 0
        assert attention.weights.attrs["normalization"] == "softmax"
        np.testing.assert_array_equal(attention["layer"], LAYERS)
        np.testing.assert_array_equal(attention["head"], HEADS)
        np.testing.assert_array_equal(attention.query_token[1], [2, 2, 1, -1, -1])
        np.testing.assert_array_equal(attention.key_length, KEY_LENGTH)
        assert attention.skipped_from == -1


def test_composed_maps_are_signed_floats(opened):
    with opened("attention/cross") as attention:
        np.testing.assert_allclose(attention.weights, expected_weights(-3), rtol=1e-6)
        assert attention.weights.attrs["normalization"] == "composed"
        assert attention.weights.dtype == np.float32


def test_packed_integers_round_to_nearest_and_are_exact_at_both_ends(closed):
    with h5py.File(closed) as log:
        weights = log["attention/encoder_self/weights"]
        raw, expected = weights[:], expected_weights(1)
        assert weights.dtype == np.uint16
        assert weights.attrs["scale_factor"][0] == 1 / 65534
        assert weights.chunks == (1, 1, 1, 3, 5, 6)
        assert weights.shuffle and weights.fletcher32 and weights.compression_opts == 1
        np.testing.assert_array_equal(raw == 65535, np.isnan(expected))
        assert np.nanmax(abs(np.where(raw == 65535, np.nan, raw / 65534) - expected)) <= EXACT


def test_vocabulary_decodes_tokens(opened):
    with opened("vocab") as vocabulary:
        assert [str(t) for t in vocabulary.text.values] == VOCABULARY
        np.testing.assert_array_equal(vocabulary.token, range(4))


def test_plain_h5py_reads_beside_the_writer(live):
    with h5py.File(live, "r", swmr=True) as log:
        assert log.attrs["status"] == "running"
        heads = log["heads/encoder_self"]
        count = len(heads["step"])
        assert count == len(STEPS)
        np.testing.assert_array_equal(heads["entropy"][:count, 2], expected_entropy()[:, 2])


def test_the_root_says_what_the_file_is(closed):
    with h5py.File(closed) as log:
        assert log.attrs["status"] == "finished"
        assert log.attrs["Conventions"] == "CF-1.10"
        assert log.attrs["schema_name"] == "headlab"
        assert log.attrs["schema_version"] == "1.0.0"
        assert log.attrs["run_id"] == "tiny/00000000-s1"
        assert log.attrs["config_yaml"] == "name: tiny\n"
        assert log.attrs["axis_order"] == "row-major"
        assert not log["heads/encoder_self/entropy"].compression


def datasets(log):
    found = []
    log.visititems(lambda _, item: found.append(item))
    return [item for item in found if isinstance(item, h5py.Dataset)]


def test_every_variable_is_described_and_every_axis_has_its_scale(closed):
    with h5py.File(closed) as log:
        for data in datasets(log):
            for name in ("units", "long_name", "comment"):
                assert isinstance(data.attrs[name], str) and data.attrs[name], (data.name, name)
            if data.dtype.kind == "f" or data.dtype == np.uint16:
                fill = data.attrs["_FillValue"][0]
                np.testing.assert_array_equal(fill, data.fillvalue)
                assert fill == 65535 or np.isnan(fill)
            for axis in range(data.ndim):
                if not data.is_scale:
                    (scale,) = data.dims[axis].values()
                    assert scale.parent == data.parent
        assert {data.attrs["units"] for data in datasets(log)} == {"1", "nat", "s", "token"}
        assert log["heads/cross/head_mask"].attrs["flag_meanings"] == "pruned alive"


def test_no_type_is_used_that_netcdf_readers_drop(closed):
    with h5py.File(closed) as log:
        for data in datasets(log):
            kinds = [data.dtype] + [
                data.attrs.get_id(name).dtype
                for name in data.attrs
                # the library's own, which netCDF knows
                if name not in ("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST")
            ]
            for kind in kinds:
                text = h5py.check_string_dtype(kind)
                assert (text and text.length is None) or kind.kind in "iuf", (data.name, kind)


@pytest.mark.skipif(not shutil.which("h5dump"), reason="h5dump is not installed")
def test_h5dump_shows_the_attributes_of_each_variable_of_every_group(closed):
    dump = subprocess.run(["h5dump", "-A", closed], check=True, capture_output=True, text=True)
    parts = re.split(r"^\s*(GROUP|DATASET) \"([^\"]+)\" \{", dump.stdout, flags=re.M)
    variables = [parts[i + 1 : i + 3] for i in range(1, len(parts), 3) if parts[i] == "DATASET"]
    with h5py.File(closed) as log:
        assert len(variables) == len(datasets(log))
    for name, text in variables:
        for attribute in ("units", "long_name", "comment"):
            assert f'ATTRIBUTE "{attribute}"' in text, (name, attribute)
