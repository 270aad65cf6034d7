"""A run that was moved, and whose text is gone: what still works, and what is said where data are
needed."""

import json
import shutil
import subprocess

import h5py
import pytest

from conftest import headlab, program, train

TEXT = "The quick brown fox jumps over a lazy dog, and naps.\n" * 60


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """{kind: (moved run, its text's last tenth as a file, what eval said before it was moved)}."""
    folder = tmp_path_factory.mktemp("moved")
    found = {}
    for kind in "char", "bytes":
        (folder / f"{kind}.txt").write_text(TEXT)
        run = train(folder / "runs", "char_mha", f"data.kind={kind}", f"data.path={folder}/{kind}.txt")
        measured = json.loads(headlab("eval", run, "--json"))
        (folder / f"{kind}.txt").unlink()
        moved = folder / "elsewhere" / kind
        moved.parent.mkdir(exist_ok=True)
        shutil.move(run, moved)
        other = folder / f"{kind}_end.txt"
        other.write_text(TEXT[int(len(TEXT) * 0.9):])
        found[kind] = moved, other, measured
    return found


def refused(*arguments):
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode != 0
    return done.returncode, done.stderr


@pytest.mark.parametrize("kind", ["char", "bytes"])
def test_a_run_whose_text_is_gone_still_generates(trained, kind):
    said = subprocess.run([program(), "generate", trained[kind][0], "--prompt", "The", "--tokens",
                           "20"], capture_output=True)  # of bytes: not all are characters
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(b"The") and len(said.stdout) == len(b"The") + 20 + 1


@pytest.mark.parametrize("kind", ["char", "bytes"])
def test_eval_reads_other_data_whole_in_windows_that_do_not_overlap(trained, kind):
    """So that the end of the text, given as a file, has the loss of the validation split."""
    run, other, before = trained[kind]
    found = json.loads(headlab("eval", run, "--data", other, "--json"))
    assert (found["split"], found["data"]) == ("whole", [str(other)])
    assert (before["split"], before["data"]) == ("val", [str(other.parent / f"{kind}.txt")])
    for name in "loss", "accuracy", "tokens", "examples":
        assert found[name] == before[name]
    assert headlab("eval", run, "--data", other).startswith(f"whole of {other} loss ")
    assert headlab("eval", run, "--text", "The fox").startswith("whole text loss ")


@pytest.mark.parametrize("kind", ["char", "bytes"])
def test_analyze_reads_a_given_text_as_one_example(trained, kind, tmp_path):
    run, text = trained[kind][0], "The lazy dog"
    found = json.loads(headlab("analyze", run, "--text", text, "--maps", 1, "--out",
                               tmp_path / "a.h5", "--json"))
    assert (found["split"], found["data"], found["examples"]) == ("whole", [], 1)
    ids = list(text.encode()) if kind == "bytes" else [sorted(set(TEXT)).index(c) for c in text]
    assert found["statistics"]["token"] == [ids]
    assert found["statistics"]["key_text"] == found["statistics"]["query_text"] == [list(text)]
    long = json.loads(headlab("analyze", run, "--text", text * 10, "--out", tmp_path / "b.h5",
                              "--json"))
    assert long["examples"] == (len(text) * 10 - 1) // 16
    assert long["statistics"]["entropy"] != found["statistics"]["entropy"]


def test_what_measures_takes_other_data(trained, tmp_path):
    run, other, _ = trained["char"]
    whole = json.loads(headlab("eval", run, "--data", other, "--json"))
    for command in "analyze", "ablate":
        found = json.loads(headlab(command, run, "--data", other, "--batches", 0, "--out",
                                   tmp_path / f"{command}.h5", "--json"))
        assert found["examples"] == whole["examples"]
        assert (found["split"], found["data"]) == ("whole", [str(other)])
        with h5py.File(tmp_path / f"{command}.h5") as file:
            (data,) = json.loads(file.attrs["manifest_json"])["data"]
            assert data["path"] == str(other)
    text = "The quick brown fox"
    for command in "eval", "ablate":
        options = [] if command == "eval" else ["--out", tmp_path / "text.h5"]
        found = json.loads(headlab(command, run, "--text", text, *options, "--json"))
        assert (found["examples"], found["tokens"], found["data"]) == (1, 16, [])


@pytest.mark.parametrize("command", ["eval", "analyze", "ablate", "prune --count 1",
                                     "convert --to collaborative"])
def test_data_that_are_gone_are_named_with_the_remedy(trained, command):
    run, other, _ = trained["char"]
    name, *options = command.split()
    code, said = refused(name, run, *options)
    assert code == 3
    assert f"{other.parent}/char.txt: cannot be opened: No such file or directory" in said
    assert "--data FILE or --text TEXT" in said


def test_a_given_text_must_fit_the_model(trained, tmp_path):
    run, other, _ = trained["char"]
    (tmp_path / "umlaut.txt").write_text("The fox.\nThe fox naps, über.\n")
    code, said = refused("eval", run, "--data", tmp_path / "umlaut.txt")
    assert code == 3
    assert f"{tmp_path}/umlaut.txt:2: 'ü' (U+00FC) is none of the " in said
    assert refused("eval", run, "--text", "")[0] == 3
    assert "--text: is too short" in refused("analyze", run, "--text", "T")[1]
    code, said = refused("eval", run, "--text", "The fox", "--data", other)
    assert code == 2 and "--data and --text: name one of the two" in said
    assert "split val; choose another --split" in refused(
        "eval", run, "--data", other, "--split", "val")[1]


def test_made_data_need_nothing_and_read_nothing(tmp_path):
    run = train(tmp_path, "induction_mha", "data.symbols=8", "data.eval_examples=4")
    code, said = refused("eval", run, "--data", tmp_path / "any.txt")
    assert code == 2 and "--data: the run's data, of kind 'induction', are not read from one path" in said
    code, said = refused("analyze", run, "--text", "any")
    assert code == 2 and "'induction', have no text" in said
    assert json.loads(headlab("eval", run, "--json"))["data"] == []


def test_maps_from_elsewhere_take_no_data(tmp_path):
    (tmp_path / "maps.safetensors").write_bytes(b"")
    for option in "--text", "--data":
        code, said = refused("analyze", tmp_path / "maps.safetensors", option, "x")
        assert code == 2 and "analyze --data, --text: are for runs" in said


def test_tokens_are_read_from_another_folder_of_the_kind(tmp_path):
    def folder(name, vocabulary):
        (tmp_path / name).mkdir()
        for split in "train", "val":
            ids = [n % 7 for n in range(400)]
            (tmp_path / name / f"{split}.bin").write_bytes(
                b"".join(id.to_bytes(2, "little") for id in ids))
        (tmp_path / name / "meta.json").write_text(json.dumps({"vocab_size": vocabulary}))
        return tmp_path / name

    one, two, wide = folder("one", 7), folder("two", 7), folder("wide", 8)
    base = tmp_path / "tokens.yaml"
    base.write_text(f"name: tokens\ndata: {{kind: tokens, path: {one}}}\n"
                    "model: {kind: decoder, layers: 1, d_model: 16, heads: 2}\n"
                    "train: {steps: 2, batch: 4, warmup: 1}\n"
                    "log: {attention: {probes: 1}}\n")
    run = headlab("run", base, "data.context=16", "--out", tmp_path / "runs").splitlines()[0]
    here = json.loads(headlab("eval", run, "--split", "train", "--json"))
    shutil.rmtree(one)
    there = json.loads(headlab("eval", run, "--data", two, "--split", "train", "--json"))
    assert there["loss"] == here["loss"] and there["split"] == "train"
    assert there["data"] == [str(two / name) for name in ("meta.json", "train.bin", "val.bin")]
    assert "the model knows 7" in refused("eval", run, "--data", wide)[1]
