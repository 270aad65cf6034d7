"""What a log says of images that a model looks at, and how the reader hands them on."""

import h5py
import numpy as np
import pytest

from conftest import headlab

import headlab_log as hl
from headlab_log.text import token_texts


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """Two layers that look at digits of 8 by 8 pixels in 2 by 2 patches."""
    return train_vit(tmp_path_factory.mktemp("vit"), "mha")


def train_vit(out, kind):
    config = out / f"{kind}.yaml"
    config.write_text(f"""
name: digits_{kind}
data: digits
model: {{kind: vit, layers: 2, d_model: 32, heads: 4, patch: 4, attention: {kind}}}
train: {{steps: 20, batch: 32, lr: 3.0e-3, warmup: 2, eval_batches: 1, checkpoint: {{every: 10}}}}
log: {{every: 5, stats_every: 5, attention: {{every: 10, probes: 3}}}}
""")
    headlab("run", config, "--out", out)
    return next(out.glob(f"digits_{kind}/*"))


def test_the_image_of_a_log_has_its_axes_and_says_how_it_was_made(vit):
    with h5py.File(vit / "log.h5") as file:
        image = file["attention/self/image"]
        assert image.dtype == "u1" and image.shape == (3, 1, 8, 8)
        axes = [axis[0].name for axis in image.dims]
        assert axes == [f"/attention/self/{name}" for name in ("probe", "channel", "row", "column")]
        assert {name: image.attrs[name].tolist() for name in ("patch", "cls_tokens")} \
            == {"patch": [4], "cls_tokens": [1]}
        assert "round(255 (x - min x) / (max x - min x))" in image.attrs["comment"]
        assert image.attrs["long_name"] == "image of a probe" and image.attrs["units"] == "1"
        assert [image[n].min() for n in range(3)] == [0, 0, 0]
        assert [image[n].max() for n in range(3)] == [255, 255, 255]
        assert len({image[n].tobytes() for n in range(3)}) == 3


def test_images_stay_when_a_run_goes_on(tmp_path):
    run = train_vit(tmp_path, "mha")
    with h5py.File(run / "log.h5") as file:
        before = file["attention/self/image"][:]
    headlab("run", "--resume", run / "ckpt/step-00000010", run / "config.yaml", "--out", tmp_path)
    with h5py.File(run / "log.h5") as file:
        assert list(file["resumes/step"]) == [10]
        assert list(file["attention/self/step"]) == [0, 10, 20]
        np.testing.assert_array_equal(file["attention/self/image"], before)


def test_a_map_of_an_image_names_its_patches_and_has_the_image(vit):
    with h5py.File(vit / "log.h5") as file:
        images = file["attention/self/image"][:]
    names = ["class", "0,0", "0,1", "1,0", "1,1"]
    with hl.open_run(vit) as run:
        assert run.tokens(1) == names
        assert run.attention().query_text.values.tolist() == 3 * [names]
        one = run.map(probe=2, layer=1, head=3)
        assert one.image.dims == ("channel", "row", "column")
        np.testing.assert_array_equal(one.image, images[2])
        np.testing.assert_array_equal(run.image(1), images[1])
        np.testing.assert_array_equal(run.image(), images[0])
        assert one.image.attrs["patch"] == 4
        assert one.key_text.values.tolist() == one.query_text.values.tolist() == names
        assert (one * 2).image is None
        with pytest.raises(hl.LogError, match="probe 3 is not logged; there are 0, 1, 2"):
            run.image(3)
        assert hl.to_bertviz(run)["tokens"] == names


def test_a_map_of_a_text_has_no_image(run):
    assert run.map().image is None and run.image(1) is None


def test_positions_that_are_kept_of_wide_images_have_their_names(vit):
    """Also where log.attention.max_positions cut them, and queries of a text stay words."""
    with hl.open_run(vit) as run:
        maps = run.group("attention/self").isel(query=slice(3), probe=slice(2)).load()
    maps = maps.drop_dims(["channel", "row", "column"])
    maps["image"] = (("probe", "channel", "row", "column"), np.zeros((2, 3, 4, 12), "u1"),
                     {"patch": 2, "cls_tokens": 2})
    assert token_texts(maps, maps.query_token, []).tolist() == 2 * [["class", "class", "0,0"]]
    assert token_texts(maps, maps.key_token, [])[1].tolist() == [
        "class", "class", "0,0", "0,1", "0,2"]
    words = maps.query_token.copy(data=[[0, 1, -1], [1, 5, 0]])
    assert token_texts(maps, words, ["a", "b"]).tolist() == [["a", "b", ""], ["b", "5", "a"]]
