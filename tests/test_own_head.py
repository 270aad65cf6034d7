"""What README and docs/own_kind.md say of a kind of one's own: the example is compiled into test_example
(tests/test_readme.py compares it), and here the config is read. tests/slow/test_readme_followed.py follows the section
in a copy of the tree."""

import pathlib
import re

import yaml

from conftest import ROOT, headlab


def test_readmes_config_is_of_its_example(tmp_path):
    """In the two files that are named, and with a kind of ours in the example's place."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Your own kind of heads\n")[1]
    source, config = (re.search(rf"`({folder}/\w+\.\w+)`", section)[1] for folder in ("variants", "configs"))
    assert f"`scripts/headlab run {config}`" in section
    example = re.search(r"```cpp\n(.*?)```", section, re.S)[1]
    given = yaml.safe_load(re.search(r"```yaml\n(.*?)```", section, re.S)[1])
    heads = given["model"]["attention"]
    assert heads["kind"] == pathlib.Path(source).stem == re.search(r'> registered\("(\w+)"', example)[1]
    assert set(heads) == {"kind", *re.findall(r'\bf\("(\w+)"', example)}
    for path in source, config:
        assert not (ROOT / path).exists()
    given["extends"] = str(ROOT / "configs" / given["extends"])
    given["model"]["attention"] = {"kind": "mha", "bias": True}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(given))
    assert yaml.safe_load(headlab("config", tmp_path / "config.yaml"))["model"]["attention"]["bias"] is True


def test_the_page_of_own_kinds_shows_the_example_that_is_compiled():
    page = (ROOT / "docs/own_kind.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"<!-- example -->\n```cpp\n(.*?)```\n<!-- end of example -->", page, re.S)
    assert shown == (ROOT / "tests/own_kind_head.cpp").read_text(encoding="utf-8")
    for asked in ("flops(T, S, pairs)", "call.uniform", "map_before", "HeadMap::kNone",
                  "call.cache->state", "recurrent_head.cpp", "own_map.cpp"):
        assert asked in page  # costs, ablation, what passes between layers, kinds without a map, maps
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)\)", page)
    assert links and [link for link in links if not (ROOT / "docs" / link).exists()] == []
