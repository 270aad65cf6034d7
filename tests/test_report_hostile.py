"""The page of a log whose texts are attacks: they are shown, and nothing of them runs."""

import json
import re
import shutil

import h5py
import numpy as np
import pytest

from report_testing import SHOWN

from headlab_log import LogError, report

HOSTILE = "\"><img src=x onerror=\"window.ran = 1\"></script><script>window.ran = 1</script>"
NAMES = (HOSTILE.replace("/", "\\"), "__proto__", "a\u2028b", "{{script}}", "a b'c")
RAN = ("return window.ran === undefined && !document.querySelector("
       "'img:not(.attack), body > script:not([type])')")


@pytest.fixture
def hostile(small_run, tmp_path):
    """A run with an attack wherever a log, a config or a manifest has a text."""
    run = tmp_path / "hostile"
    shutil.copytree(small_run, run)
    with h5py.File(run / "log.h5", "r+") as file:
        for group, axes, pattern in (("scalars", ["step"], "train_loss"),
                                     ("heads/self", ["step", "layer", "head"], "entropy")):
            for name in NAMES:
                file[group][name] = file[group][pattern][()]
                for attribute in ("units", "long_name", "comment"):
                    file[group][name].attrs[attribute] = HOSTILE
                for axis, scale in enumerate(axes):
                    file[group][name].dims[axis].attach_scale(file[group][scale])
        for group in ("heads", "attention"):
            for name in NAMES:
                file.copy(file[f"{group}/self"], file[group], name=name, expand_refs=True)
        file.attrs["config_yaml"] = file.attrs["config_yaml"].replace(
            "name: char_mha", f"name: {json.dumps(HOSTILE)}\ntag: {json.dumps(HOSTILE)}")
    for name, key in (("manifest.json", "run_id"), ("status.json", "reason")):
        said = json.loads((run / name).read_text())
        said[key] = HOSTILE
        (run / name).write_text(json.dumps(said))
    return run


def test_texts_of_a_hostile_log_are_shown_and_only_what_the_policy_names_runs(page, hostile, tmp_path):
    """Into the page itself an attack is put, which its policy must refuse."""
    html = report.build([hostile])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "unsafe-inline" not in policy and "unsafe-eval" not in policy and "'sha256-" in policy
    attack = ("<script class='attack'>window.ran = 1</script>"
              "<img class='attack' src='data:,' onerror='window.ran = 1'>")
    path = tmp_path / "page.html"
    path.write_text(html.replace("<header>", f"<header>{attack}"), encoding="utf-8")
    page.show(path)
    sites = page.run("return [...document.querySelector('#site').options].map(o => o.value)")
    assert set(NAMES) | {"self"} == set(sites)
    for site in sites:
        page.run("""const select = document.querySelector('#site'); select.value = arguments[0];
            select.dispatchEvent(new Event('change', {bubbles: true}))""", site)
        page.wait(f"{SHOWN}?.includes({json.dumps(f' {site} ')})")
        assert page.run(RAN)
    assert HOSTILE in page.run("return document.body.innerText")
    refused = page.errors()
    assert len(refused) == 2, refused  # the script and the handler of the attack, and nothing else
    assert all("Content Security Policy" in error for error in refused)
    page.open("about:blank")


@pytest.mark.parametrize("axis", ["attention/self/step", "heads/self/layer", "attention/self/head"])
def test_an_axis_of_texts_is_refused(small_run, tmp_path, axis):
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    with h5py.File(run / "log.h5", "r+") as file:
        group, name = axis.rsplit("/", 1)
        file.move(axis, f"{group}/old")
        texts = [f"{HOSTILE}{n}" for n in range(len(file[f"{group}/old"]))]
        file[axis] = np.array(texts, dtype=h5py.string_dtype())
        file[axis].make_scale(name)
        for data in file[group].values():
            for dim in data.dims:
                if any(scale == file[f"{group}/old"] for scale in dim.values()):
                    dim.detach_scale(file[f"{group}/old"])
                    dim.attach_scale(file[axis])
        del file[f"{group}/old"]
    with pytest.raises(LogError):
        report.build([run])
