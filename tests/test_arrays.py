"""Data sets that Python programs write (kind arrays), and the heads that answer for an example."""

import json
import subprocess

import headlab_log
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from conftest import ROOT, headlab, program

WORDS = 40


def sentences(count, seed):
    """Of four classes: each has words of its own among others, at any place; lengths differ."""
    draws = np.random.default_rng(seed)
    examples = []
    for _ in range(count):
        label = int(draws.integers(4))
        words = draws.integers(16, WORDS, draws.integers(6, 13))
        own = draws.choice(len(words), 3, replace=False)
        words[own] = label * 4 + draws.integers(4, size=3)
        examples.append({"ids": words.tolist(), "targets": label})
    return examples


def config(folder, model, steps=150, **train):
    text = {"name": "arrays", "data": {"kind": "arrays", "path": str(folder)}, "model": model,
            "train": {"steps": steps, "batch": 32, "lr": 3e-3, "warmup": 20, "eval_every": steps, "eval_batches": 4} | train,
            "log": {"every": 50, "stats_every": 50, "attention": {"every": 0}}}
    path = folder / "config.yaml"
    path.write_text(json.dumps(text))
    return path


def result(folder, model, *words, **settings):
    return json.loads(headlab("run", config(folder, model, **settings), "--out", folder / "runs", "--json", *words))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled")
    return headlab_log.write_arrays(folder / "set", train=sentences(2000, 1), validation=sentences(400, 2),
                                    test=sentences(300, 3), vocabulary=WORDS, classes=4)


def answering(kind, head, **options):
    """A decoder is told what to answer with."""
    return {"kind": kind, **({"head": head} if kind == "decoder" else {}), **options}


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_labelled_sentences_are_learnt(labelled, kind):
    model = answering(kind, "classes", layers=2, d_model=32, heads=4)
    found = result(labelled, model, "data.test=own", f"name={kind}", steps=400)
    assert found["val/accuracy"] >= .95 and found["test/accuracy"] >= .95
    assert found["val/examples"] == 400 and found["test/examples"] == 300
    assert "val/perplexity" not in found
    assert json.loads(headlab("eval", found["run"], "--json"))["references"]["chance"]["accuracy"] == .25
    assert "accuracy" in headlab("ablate", found["run"])


def test_the_place_of_the_last_token_is_the_examples_own(labelled):
    """What fills a short sentence up changes nothing."""
    train = load_file(labelled / "train.safetensors")
    assert train["length"].min() < train["ids"].shape[1] == 12
    other = {name: array.copy() for name, array in load_file(labelled / "validation.safetensors").items()}
    for row, length in zip(other["ids"], other["length"]):
        row[length:] = 7
    filled = labelled.parent / "filled"
    filled.mkdir()
    save_file(train, filled / "train.safetensors", {"vocabulary": str(WORDS), "classes": "4"})
    save_file(other, filled / "validation.safetensors")
    for kind in "encoder", "decoder":
        model = answering(kind, "classes", layers=1, d_model=16, heads=2)
        first = result(labelled, model, f"name=first_{kind}", steps=5)
        second = result(filled, model, f"name=second_{kind}", steps=5)
        assert first["val/loss"] == second["val/loss"]


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_numbers_are_predicted(tmp_path, kind):
    """How many times a word stands there, and the same of another."""
    def counted(count, seed):
        ids = np.random.default_rng(seed).integers(0, 6, (count, 10))
        return {"ids": ids, "targets": np.stack([(ids == 1).sum(1), (ids == 2).sum(1)], 1) / 4}

    folder = headlab_log.write_arrays(tmp_path / "set", train=counted(2000, 1), validation=counted(300, 2))
    found = result(folder, answering(kind, "values", layers=1, d_model=32, heads=2), steps=400)
    assert found["val/r2"] > .9 and found["val/mse"] == found["val/loss"] < .05
    assert "val/accuracy" not in found


def images(count, seed):
    """Where the bright square is."""
    draws = np.random.default_rng(seed)
    pixels, labels = draws.integers(0, 60, (count, 8, 8), np.uint8), draws.integers(0, 4, count)
    for image, label in zip(pixels, labels):
        image[label // 2 * 4:label // 2 * 4 + 4, label % 2 * 4:label % 2 * 4 + 4] += 120
    return pixels, labels


def test_images_are_told_apart_and_measured(tmp_path):
    model = {"kind": "vit", "layers": 1, "d_model": 32, "heads": 2, "patch": 4}
    (pixels, labels), (others, their) = images(1000, 1), images(200, 2)
    folder = headlab_log.write_arrays(tmp_path / "set", train={"image": pixels, "targets": labels},
                                      validation={"image": others, "targets": their})
    assert result(folder, model)["val/accuracy"] >= .95
    brightness = [{"image": np.full((8, 8, 3), level, np.uint8), "targets": level / 255}
                  for level in np.random.default_rng(3).integers(0, 256, 1000)]
    folder = headlab_log.write_arrays(tmp_path / "numbers", train=brightness, validation=brightness[:100])
    assert load_file(folder / "train.safetensors")["image"].shape == (1000, 3, 8, 8)
    assert result(folder, model, steps=300)["val/r2"] > .9


@pytest.mark.parametrize("head, said", [("tokens", "model.head=classes predicts that"), ("values", "these data have none"),
                                        ("bottleneck", "model.head=classes predicts that")])
def test_a_head_that_the_data_do_not_fit_is_refused(labelled, head, said):
    model = {"kind": "decoder", "layers": 1, "d_model": 16, "heads": 2, "head": head}
    done = subprocess.run([program(), "run", config(labelled, model)], capture_output=True, text=True)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("kind, head, said", [("decoder", "classes", "model.head: classes of a decoder"),
                                              ("encoder", "values", "numbers that an encoder predicts")])
def test_what_transformers_has_no_class_for_is_not_exported(tmp_path, kind, head, said):
    targets = np.arange(8) % 2 if head == "classes" else np.arange(8) / 8
    data = {"ids": np.arange(32).reshape(8, 4) % 5, "targets": targets}
    folder = headlab_log.write_arrays(tmp_path / "set", train=data, validation=data)
    found = result(folder, answering(kind, head, layers=1, d_model=16, heads=2, position="learned"), steps=2)
    done = subprocess.run([program(), "export", found["run"], tmp_path / "out"], capture_output=True, text=True)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_labels_that_are_numbers_are_not_smoothed(tmp_path):
    data = {"ids": np.arange(32).reshape(8, 4) % 5, "targets": np.arange(8) / 8}
    folder = headlab_log.write_arrays(tmp_path / "set", train=data, validation=data)
    model = {"kind": "encoder", "layers": 1, "d_model": 16, "heads": 2}
    done = subprocess.run([program(), "run", config(folder, model), "train.label_smoothing=0.1"], capture_output=True,
                          text=True)
    assert (done.returncode, "train.label_smoothing" in done.stderr) == (2, True), done.stderr


def test_npy_files_are_the_same_data(labelled, tmp_path):
    for split in "train", "validation":
        (tmp_path / split).mkdir()
        for name, array in load_file(labelled / f"{split}.safetensors").items():
            np.save(tmp_path / split / f"{name}.npy", array.astype(np.int32))
    model = {"kind": "encoder", "layers": 1, "d_model": 16, "heads": 2}
    assert result(tmp_path, model, steps=5)["val/loss"] == result(labelled, model, "name=npy", steps=5)["val/loss"]


def test_tokens_are_predicted_where_every_place_has_a_target(tmp_path):
    ids = np.random.default_rng(1).integers(0, 5, (200, 12))
    targets = np.concatenate([np.full((200, 1), -100), ids[:, :-1]], 1)  # the token before
    data = {"ids": ids, "targets": targets}
    folder = headlab_log.write_arrays(tmp_path / "set", train=data, validation=data)
    found = result(folder, {"kind": "decoder", "layers": 2, "d_model": 32, "heads": 2, "position": "rope"}, steps=300)
    assert found["val/accuracy"] > .95 and found["val/tokens"] == 200 * 11


def test_names_of_hugging_face_are_taken(tmp_path):
    class Dataset:
        """What `datasets` gives."""
        column_names = ["input_ids", "attention_mask", "label"]

        def __getitem__(self, name):
            return {"input_ids": [[1, 2, 0], [3, 0, 0]], "attention_mask": [[1, 1, 0], [1, 0, 0]], "label": [0, 1]}[name]

    headlab_log.write_arrays(tmp_path, train=Dataset(), validation=Dataset())
    found = load_file(tmp_path / "train.safetensors")
    assert {name: array.tolist() for name, array in found.items()} == {
        "ids": [[1, 2, 0], [3, 0, 0]], "length": [2, 1], "targets": [0, 1]}


GOOD = {"ids": np.arange(12).reshape(4, 3), "targets": np.array([0, 1, 2, 1])}


@pytest.mark.parametrize("change, said", [
    ({"targets": None}, "has no targets"),
    ({"ids": None}, "neither ids and image"),
    ({"image": np.zeros((4, 1, 2, 2), np.uint8)}, "both ids and image"),
    ({"ids": np.zeros((4, 3), np.float32)}, "must be whole numbers"),
    ({"ids": np.array([[0, 1, -2]] * 4)}, "example 0 has -2"),
    ({"targets": np.array([0, 1, 3])}, "targets has 3 examples, and ids has 4"),
    ({"targets": np.zeros((4, 2), np.int64)}, "[N,T] as ids, or [N]"),
    ({"targets": np.array([0, np.nan, 1, 1], np.float32)}, "example 1 has a number that is not finite"),
    ({"length": np.array([3, 4, 1, 1])}, "has 4, which is not below"),
    ({"length": np.array([3, 0, 1, 1])}, "example 1 has 0"),
    ({"segment": np.zeros((4, 2), np.int64)}, "must be [N,T] as ids"),
    ({"words": np.zeros(4)}, "has an array 'words'"),
])
def test_arrays_that_do_not_fit_are_refused_with_their_place(tmp_path, change, said):
    arrays = {name: array for name, array in (GOOD | change).items() if array is not None}
    for split in "train", "validation":
        save_file(arrays, tmp_path / f"{split}.safetensors")
    model = {"kind": "decoder", "layers": 1, "d_model": 16, "heads": 2}
    done = subprocess.run([program(), "run", config(tmp_path, model), "--out", tmp_path / "runs"], capture_output=True,
                          text=True)
    assert (done.returncode, said in done.stderr) == (3, True), done.stderr
    assert "train.safetensors" in done.stderr and not (tmp_path / "runs").exists()


def test_a_split_that_training_does_not_know_is_refused(tmp_path):
    save_file(GOOD, tmp_path / "train.safetensors")
    save_file(GOOD | {"ids": GOOD["ids"] + 1}, tmp_path / "validation.safetensors")
    model = {"kind": "decoder", "layers": 1, "d_model": 16, "heads": 2}
    done = subprocess.run([program(), "run", config(tmp_path, model)], capture_output=True, text=True)
    assert done.returncode == 3 and "has 12, which is not below vocabulary = 12" in done.stderr


@pytest.mark.parametrize("data, said", [
    ({"train": GOOD}, "validation is missing"),
    ({"train": GOOD, "validation": GOOD, "dev": GOOD}, "no split is called dev"),
    ({"train": GOOD, "validation": {"ids": GOOD["ids"]}}, "validation: has ids"),
    ({"train": GOOD | {"ids": GOOD["ids"] / 2}, "validation": GOOD}, "train: float64 are no whole numbers"),
    ({"train": [1, 2], "validation": GOOD}, "train: must be a mapping of arrays"),
])
def test_what_cannot_be_written_is_said_and_nothing_is(tmp_path, data, said):
    with pytest.raises(ValueError, match=said):
        headlab_log.write_arrays(tmp_path / "set", **data)
    assert not (tmp_path / "set").exists()


def python_of(page, heading):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    return text.split("```python\n")[1].split("```")[0]


def test_the_examples_of_the_page_write_data_that_train(tmp_path, monkeypatch):
    from PIL import Image
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"the {'good' if n % 3 else 'bad'} film,{'yes' if n % 3 else 'no'}\n" for n in range(200))
    (tmp_path / "reviews.csv").write_text("text,label\n" + lines)
    exec(python_of("data_sets.md", "Sentences from a CSV file"), {})
    assert result(tmp_path / "reviews", {"kind": "encoder", "layers": 1, "d_model": 16, "heads": 2},
                  steps=250)["val/accuracy"] > .95
    for n, (pixels, label) in enumerate(zip(*images(100, 1))):
        folder = tmp_path / "photos" / f"class {label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{n}.png")
    exec(python_of("data_sets.md", "Images from a directory"), {})
    assert result(tmp_path / "photos_set", {"kind": "vit", "layers": 1, "d_model": 16, "heads": 2, "patch": 4},
                  steps=150)["val/accuracy"] > .9
