"""scripts/install, and the name by which the program calls itself in the commands that it prints."""

import os
import re
import shutil
import subprocess

import pytest

from conftest import ROOT, program


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """scripts/ beside a program that is built already: nothing is set up."""
    copy = tmp_path_factory.mktemp("some where") / "headlab"
    (copy / "build/release").mkdir(parents=True)
    for what in "bash", "zsh", "fish", "man":
        (copy / f"build/release/{what}").write_text(
            subprocess.run([program(), "completion", what], capture_output=True, text=True, check=True,
                           env={**os.environ, "HEADLAB_COMMAND": "headlab"}).stdout)
    # The program, which an install asks five times; its completions were asked for above.
    (copy / "build/release/headlab").write_text(
        f'''#!/bin/sh
case $1,$HEADLAB_COMMAND in
  completion,headlab) exec cat "${{0%/*}}/$2" ;;
  version,*) ;;
  *) exec '{os.path.abspath(program())}' "$@" ;;
esac
''')
    (copy / "build/release/headlab").chmod(0o755)
    shutil.copytree(ROOT / "scripts", copy / "scripts", symlinks=True,
                    ignore=shutil.ignore_patterns("notebooks"))
    (copy / ".deps").symlink_to(ROOT / ".deps")
    for name in ("setup", "build"):
        (copy / "scripts" / name).write_text("#!/bin/sh\n")
    return copy


def shell(line, folder, path="", **variables):
    """What a line of bash says, with `path` before the system's PATH."""
    system = "/usr/local/bin:/usr/bin:/bin"
    environment = {**os.environ, "PATH": f"{path}:{system}" if path else system, **variables}
    environment.pop("HEADLAB_COMMAND", None)
    return subprocess.run(["bash", "-c", line], cwd=folder, text=True, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


def called(line, folder, **where):
    """What a command without arguments calls the program in its hint."""
    return re.search(r"name a command; (.*) --help lists them", shell(line, folder, **where))[1]


def test_a_printed_command_works_where_the_caller_stands(tree):
    assert called("scripts/headlab", tree) == "scripts/headlab"
    assert called("./headlab", tree / "scripts") == "./headlab"
    (tree.parent / "other").mkdir(exist_ok=True)
    assert called("../headlab/scripts/headlab", tree.parent / "other") == \
        "../headlab/scripts/headlab"
    absolute = called(f"'{tree}/scripts/headlab'", "/")
    assert "some\\ where" in absolute  # quoted: it can be pasted
    assert "Usage: " in shell(f"{absolute} --help", "/")
    assert called("PATH=scripts:$PATH headlab", tree) == "headlab"


def test_a_link_by_another_name_is_told_by_the_place_of_the_tree(tree, tmp_path):
    (tmp_path / "lab").symlink_to(tree / "scripts/headlab")
    name = called("./lab", tmp_path)
    assert "Usage: " in shell(f"{name} --help", tmp_path)


def test_what_opens_logs_prints_the_same_name(tree):
    ask = 'import os; print(os.environ["HEADLAB_COMMAND"])'
    assert shell(f"scripts/venv -c '{ask}'", tree) == "scripts/headlab\n"
    assert "`scripts/headlab run CONFIG` says" in shell("scripts/report nowhere", tree)
    assert "`../headlab run CONFIG` says" in shell("../report nowhere", tree / "scripts/cmake")


def test_install_puts_it_on_path_and_remove_takes_it_away(tree, tmp_path):
    prefix = tmp_path / "of mine"
    said = shell(f"scripts/install --prefix '{prefix}'", tree)
    placed = sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*")
                    if not path.is_dir() or path.is_symlink())
    assert placed == ["bin/headlab", "share/bash-completion/completions/headlab",
                      "share/fish/vendor_completions.d/headlab.fish", "share/man/man1/headlab.1",
                      "share/zsh/site-functions/_headlab"]
    for name in placed:
        assert f"install: {prefix / name}" in said
    assert f"{prefix}/bin is not on PATH" in said
    assert "not on PATH" not in shell(f"scripts/install --prefix '{prefix}'", tree,
                                      path=prefix / "bin")
    assert called("headlab", tmp_path, path=prefix / "bin") == "headlab"
    assert called("scripts/headlab", tree, path=prefix / "bin") == "headlab"
    assert "`headlab run CONFIG` says" in shell("scripts/report nowhere", tree, path=prefix / "bin")
    assert shell(f"scripts/install --prefix '{prefix}' --remove", tree).count("removed") == 5
    assert [path for path in prefix.rglob("*") if not path.is_dir()] == []


def test_install_is_in_the_home_folder_unless_told_otherwise(tree, tmp_path):
    said = shell("scripts/install", tree, HOME=str(tmp_path), SHELL="/usr/bin/zsh")
    assert (tmp_path / ".local/bin/headlab").readlink() == tree / "scripts/headlab"
    assert f"fpath+=({tmp_path}/.local/share/zsh/site-functions)" in said


def test_what_is_not_of_this_tree_is_neither_replaced_nor_removed(tree, tmp_path):
    other = tmp_path / "bin/headlab"
    other.parent.mkdir()
    other.write_text("mine")
    for option in "", "--remove":
        said = shell(f"scripts/install --prefix '{tmp_path}' {option}; echo $?", tree)
        assert "not of this tree" in said and said.endswith("1\n")
    assert other.read_text() == "mine"
    assert list(tmp_path.rglob("*")) == [other.parent, other]


PLACED = ("share/bash-completion/completions/headlab", "share/zsh/site-functions/_headlab",
          "share/fish/vendor_completions.d/headlab.fish", "share/man/man1/headlab.1")


@pytest.mark.parametrize("name", PLACED)
def test_a_file_of_the_users_is_neither_replaced_nor_removed(tree, tmp_path, name):
    install = f"scripts/install --prefix '{tmp_path}'"
    mine = tmp_path / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    said = shell(f"{install}; echo $?", tree)
    assert f"{mine} is there and not as scripts/install made it" in said and said.endswith("1\n")
    assert [path for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()] == [mine]
    mine.unlink()
    (tmp_path / "kept").write_text("kept")
    mine.symlink_to(tmp_path / "kept")  # as dotfiles are often laid
    assert shell(f"{install}; echo $?", tree).endswith("1\n") and mine.is_symlink()
    mine.unlink()
    assert shell(f"{install} >/dev/null && {install} >/dev/null; echo $?", tree).endswith("0\n")  # its own it renews
    mine.write_text(mine.read_text() + "# more\n")
    assert shell(f"{install}; echo $?", tree).endswith("1\n")
    said = shell(f"{install} --remove", tree)
    assert f"left {mine}" in said and said.count("removed") == 4
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted([mine.name, "kept"])
    assert mine.read_text().endswith("# more\n") and (tmp_path / "kept").read_text() == "kept"


def test_files_of_an_install_before_they_were_marked_are_renewed(tree, tmp_path):
    install = f"scripts/install --prefix '{tmp_path}'"
    shell(install, tree)
    for name in PLACED:
        path = tmp_path / name
        lines = path.read_text().splitlines(keepends=True)
        assert "Made by scripts/install of headlab" in lines[-1]
        path.write_text("".join(lines[:-1]))
    assert shell(f"{install} >/dev/null; echo $?", tree) == "0\n"
    assert shell(f"{install} --remove", tree).count("removed") == 5


def test_a_link_of_the_users_that_leads_here_stays(tree, tmp_path):
    (tmp_path / "own").symlink_to(tree / "scripts/headlab")
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin/headlab"
    link.symlink_to("../own")
    assert "leads here already" in shell(f"scripts/install --prefix '{tmp_path}'", tree)
    shell(f"scripts/install --prefix '{tmp_path}' --remove", tree)
    assert str(link.readlink()) == "../own"


def test_a_broken_link_is_replaced_only_where_a_tree_was(tree, tmp_path):
    link = tmp_path / "bin/headlab"
    link.parent.mkdir()
    link.symlink_to("/not/mounted/my_headlab")
    assert shell(f"scripts/install --prefix '{tmp_path}'; echo $?", tree).endswith("1\n")
    assert str(link.readlink()) == "/not/mounted/my_headlab"
    link.unlink()
    link.symlink_to("/gone/headlab/scripts/headlab")
    assert shell(f"scripts/install --prefix '{tmp_path}' >/dev/null; echo $?", tree) == "0\n"
    assert link.readlink() == tree / "scripts/headlab"


def test_a_bin_that_is_the_trees_own_scripts_is_left(tree, tmp_path):
    (tmp_path / "bin").symlink_to(tree / "scripts")
    before = (tree / "scripts/headlab").read_bytes()
    for option in "", "--remove":
        shell(f"scripts/install --prefix '{tmp_path}' {option}", tree)
        assert not (tree / "scripts/headlab").is_symlink() and (tree / "scripts/headlab").read_bytes() == before


def test_install_refuses_what_it_does_not_know(tree):
    for wrong in "--prefix", "--frefix x":
        assert shell(f"scripts/install {wrong}; echo $?", tree).endswith("2\n")


def test_the_manual_has_every_command_with_its_options(tmp_path):
    page = tmp_path / "headlab.1"
    page.write_text(subprocess.run([program(), "completion", "man"], capture_output=True, text=True,
                                   check=True).stdout)
    if not shutil.which("man"):
        pytest.skip("there is no man")
    read = subprocess.run(["man", "--warnings=all", "-l", page], capture_output=True, text=True,
                          env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
    assert read.stderr == ""
    helped = subprocess.run([program(), "--help"], capture_output=True, text=True).stdout
    for name in re.findall(r"^  ([a-z]\w+)  ", helped, re.M):
        assert f"headlab {name}" in read.stdout
    assert "--temperature FLOAT" in read.stdout and "headlab generate run [option ...]" in read.stdout
    assert "--mode zero|mean|position_mean|uniform|all" in read.stdout


@pytest.mark.parametrize("shell_name", ["zsh", "fish"])
def test_other_shells_complete_alike(shell_name, tmp_path):
    if not shutil.which(shell_name):
        pytest.skip(f"there is no {shell_name}")
    script = tmp_path / "script"
    script.write_text(subprocess.run([program(), "completion", shell_name], capture_output=True,
                                     text=True, check=True).stdout)
    (tmp_path / "runs/half").mkdir(parents=True)
    (tmp_path / "runs/half/config.yaml").touch()
    ask = {"fish": lambda line: f"source script; complete -C '{line}' | cut -f1",
           "zsh": lambda line: "autoload -U compinit; compinit -D -u; source ./script; "
                               "emulate -L sh; setopt kshglob noshglob braceexpand ksharrays; "
                               f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
                               "_headlab; print -rl -- ${COMPREPLY[@]}"}[shell_name]

    def complete(line):
        done = subprocess.run([shell_name, "-c", ask(line)], cwd=tmp_path, capture_output=True,
                              text=True, env={**os.environ, "HOME": str(tmp_path)})
        assert done.stderr == ""
        return done.stdout.split()

    assert complete("headlab descri") == ["describe"]
    assert complete("headlab describe moh") == ["moh", "mohsa"]
    assert complete("headlab convert --to g") == ["gated"]
    assert complete("headlab run a.yaml train.ste") == ["train.steps="]
    assert set(complete("headlab prune runs/h")) <= {"runs/half", "runs/half/"}
    assert complete("headlab prune runs/h")
