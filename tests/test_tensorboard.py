"""Event files of to_tensorboard hold what the log holds, at its steps and times."""

import datetime
import io
import pathlib
import shutil

import h5py
import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator as accumulator

from conftest import log_command, train
from test_exports import pruned, two_sites  # noqa: F401: fixtures

import headlab_log as hl
from headlab_log.tensorboard import map_picture


def read(folder):
    everything = {kind: 0 for kind in ("scalars", "images", "histograms", "tensors")}
    events = accumulator.EventAccumulator(str(folder), size_guidance=everything)
    events.Reload()
    return events


@pytest.fixture(scope="module")
def written(small_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    with hl.open_run(small_run) as run:
        hl.to_tensorboard(run, folder)
    with h5py.File(small_run / "log.h5") as log:
        yield read(folder), log


def check_scalar(events, tag, steps, values):
    found = events.Scalars(tag)
    there = np.isfinite(values)
    assert [event.step for event in found] == list(steps[there])
    np.testing.assert_array_equal(np.float32([event.value for event in found]), values[there])


def test_curves_of_training_and_validation_have_their_steps_and_values(written):
    events, log = written
    for group, prefix in ("scalars", "train"), ("eval", "val"):
        data = log[group]
        names = [name for name in data if name not in ("step", "wall_time")]
        assert len(names) >= 3
        for name in names:
            tag = f"{prefix}/{name.removeprefix(prefix + '_')}"
            check_scalar(events, tag, data["step"][:], np.float32(data[name][:]))


def test_every_statistic_of_every_head_is_a_curve(written):
    events, log = written
    heads = log["heads/self"]
    names = [name for name in heads if heads[name].ndim == 3 and name != "head_mask"]
    assert len(names) > 10
    drawn = set()
    for name in names:
        for layer in range(2):
            for head in range(3):
                values = heads[name][:, layer, head]
                if np.isfinite(values).any():
                    tag = f"heads.self.{name}/L{layer}H{head}"
                    drawn.add(tag)
                    check_scalar(events, tag, heads["step"][:], values)
    assert drawn == {tag for tag in events.Tags()["scalars"] if tag.startswith("heads.self.")}
    assert len(drawn) > 60


def test_times_are_those_of_the_run(written):
    events, log = written
    start = datetime.datetime.fromisoformat(log.attrs["created_utc"].replace("Z", "+00:00"))
    times = [event.wall_time for event in events.Scalars("train/loss")]
    np.testing.assert_allclose(times, start.timestamp() + log["scalars/wall_time"][:],
                               rtol=0, atol=1e-4)
    assert events.Scalars("heads.self.entropy/L0H0")[-1].wall_time == times[-1]
    assert events.FirstEventTimestamp() == start.timestamp()


def test_histograms_hold_each_head_once_and_each_pair_once(written):
    events, log = written
    entropy = events.Histograms("heads.self/entropy")[-1]
    values = log["heads/self/entropy"][-1]
    assert (entropy.step, entropy.histogram_value.num) == (20, 6)
    np.testing.assert_allclose(entropy.histogram_value.sum, values.sum(), rtol=1e-6)
    pairs = events.Histograms("heads.self/js")[-1].histogram_value
    assert pairs.num == 2 * 3 and pairs.max == log["heads/self/js"][-1].max()
    assert "heads.self.js/L0H0" not in events.Tags()["scalars"]


def pixels(image):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))


def test_maps_are_images_with_a_row_a_layer_and_a_column_a_head(written, run):
    events, _ = written
    images = events.Images("attention.self/probe0")
    assert [image.step for image in images] == [0, 10, 20]
    picture = pixels(images[-1])
    assert picture.shape == (2 * (96 + 4), 3 * (96 + 4), 3)
    for layer in range(2):
        for head in range(3):
            tile = picture[layer * 100 + 2:][:96, head * 100 + 2:][:, :96][3::6, 3::6].astype(int)
            weights = run.map(layer=layer, head=head).values
            bright = tile.sum(-1)
            assert len(np.unique(bright[np.triu_indices(16, 1)])) == 1  # no weight ahead
            order = np.argsort(weights, axis=None)
            assert (np.diff(bright.ravel()[order]) >= -2).all()  # the more weight the brighter


def test_pictures_tell_signs_and_heads_that_are_not_there():
    maps = np.array([[[[1.0, -1.0], [0.0, 0.5]], [[np.nan] * 2] * 2]])
    picture = map_picture(maps).astype(int)
    (plus, minus), (zero, _) = (picture[2 + 24::48, 2 + 24::48])[:2, :2]
    assert plus[0] > plus[2] and minus[2] > minus[0]  # red and blue
    assert min(zero) > 240
    assert (picture[50, 150] == 204).all()


def test_pruned_heads_have_no_curve(pruned, tmp_path):
    events = read(hl.to_tensorboard(pruned, tmp_path).parent)
    curves = [tag.split("/") for tag in events.Tags()["scalars"]]
    assert {head for name, head in curves if name == "heads.self.entropy"} == {"L1H0", "L1H2"}
    assert events.Histograms("heads.self/entropy")[-1].histogram_value.num == 2


def test_a_run_without_statistics_of_heads_has_everything_else(tmp_path):
    path = train(tmp_path, "char_mha", "log.stats_every=0")
    with hl.open_run(path) as run:
        hl.to_tensorboard(run, tmp_path / "events")
    events = read(tmp_path / "events")
    tags = events.Tags()
    assert [event.step for event in events.Scalars("train/loss")][-1] == 20
    assert tags["images"] == ["attention.self/probe0"]
    assert tags["histograms"] == [] and not any("heads." in tag for tag in tags["scalars"])


def test_each_site_has_its_curves_and_images(two_sites, tmp_path):
    events = read(hl.to_tensorboard(two_sites, tmp_path).parent)
    assert set(events.Tags()["images"]) == {"attention.encoder_self/probe0",
                                            "attention.cross/probe0"}
    assert {"heads.cross.entropy/L2H3", "heads.encoder_self.residual_ratio/L2"} <= set(
        events.Tags()["scalars"])


def test_settings_are_text_and_hyperparameters(written, run):
    events, _ = written
    (text,) = events.Tensors("config/text_summary")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    assert lines == [f"    {line}" for line in run.config_yaml.splitlines()]
    from tensorboard.plugins.hparams import plugin_data_pb2

    data = plugin_data_pb2.HParamsPluginData.FromString(
        events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content)
    settings = data.session_start_info.hparams
    assert settings["model.heads"].number_value == 3
    assert settings["model.attention.kind"].string_value == "mha"
    assert settings["model.causal"].bool_value is True
    assert not any(name.startswith("log.") for name in settings)  # changes nothing in training


def test_the_same_run_makes_the_same_file_in_the_place_of_an_earlier_one(run, tmp_path):
    path = hl.to_tensorboard(run, tmp_path)
    first = path.read_bytes()
    (tmp_path / "events.out.tfevents.1.headlab").write_bytes(b"of an earlier run")
    (tmp_path / "events.out.tfevents.1.mine").write_bytes(b"of another program")
    assert hl.to_tensorboard(run, tmp_path) == path and path.read_bytes() == first
    assert {p.name for p in tmp_path.iterdir()} == {path.name, "events.out.tfevents.1.mine"}


def test_several_runs_get_a_folder_each(run, pruned, tmp_path):
    done = log_command("tensorboard", run.path, pruned.path, "-o", tmp_path / "both")
    assert done.returncode == 0 and done.stderr == ""
    folders = sorted(path.name for path in (tmp_path / "both").iterdir())
    assert folders == sorted(f"char_mha-{each.path.name}" for each in (run, pruned))
    for line in done.stdout.splitlines():
        assert pathlib.Path(line).is_file()


def test_runs_that_share_a_folder_do_not_take_each_others_place(small_run, tmp_path):
    again = tmp_path / "elsewhere" / small_run.name
    shutil.copytree(small_run, again)
    done = log_command("tensorboard", small_run, again, "-o", tmp_path / "all")
    assert done.returncode == 4 and str(again) in done.stderr and "its own -o" in done.stderr
    assert len(done.stdout.splitlines()) == 1
