"""scripts/fuzz where there is no clang that can build the fuzzers, and what it says of wrong words."""

import pathlib
import subprocess
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent


def fuzz(*arguments, path="/usr/bin:/bin"):
    done = subprocess.run([ROOT / "scripts/fuzz", *arguments], capture_output=True, text=True,
                          env={"PATH": path})
    return done.returncode, done.stdout + done.stderr


def test_without_clang_the_fuzzers_are_skipped_and_say_so(tmp_path):
    clang = tmp_path / "clang++"
    clang.write_text("#!/bin/sh\nexit 1\n")
    clang.chmod(0o755)
    code, said = fuzz("--junit", tmp_path / "fuzz.xml", path=f"{tmp_path}:/usr/bin:/bin")
    assert (code, said) == (77, "skipped: fuzzers: no clang with libFuzzer\n")
    case = xml.parse(tmp_path / "fuzz.xml").getroot().find("testcase")
    assert case.find("skipped").get("message") == "no clang with libFuzzer"


def test_a_fuzzer_that_is_none_is_refused_with_those_there_are():
    code, said = fuzz("gguv")
    assert code == 2 and "'gguv'" in said and " gguf " in said


def test_every_fuzzer_has_a_corpus():
    targets = {path.stem.removeprefix("fuzz_") for path in (ROOT / "tests/fuzz").glob("fuzz_*.cpp")}
    assert targets and targets == {path.name for path in (ROOT / "tests/fuzz/corpus").iterdir()}
