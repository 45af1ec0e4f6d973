"""The scratch tree: files as in any checkout, nothing that reaches the user, gone at the end."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from conftest import as_nobody, make_repo, run_git
from test_workspace import ODD_NAMES, commit_all, everything, write

from factory.git import Git, GitError
from factory.scratch import scratch_tree
from factory.workspace import Refused, Repository


@pytest.fixture(autouse=True)
def tmpdir(tmp_path, monkeypatch):
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def scratch(repo: Path, commit: str = "HEAD", **options):
    return scratch_tree(Repository.open(repo), run_git(repo, "rev-parse", commit), **options)


def files_of(root: Path) -> dict[str, tuple]:
    """Names, modes and contents below a directory, without its `.git`."""
    seen = everything(root)
    return {name: (what[0], what[2]) for name, what in seen.items() if name.split("/")[0] != ".git"}


def run(tree, *argv: str) -> subprocess.CompletedProcess:
    """A command as a run would start it: in the tree, with git as anybody has it."""
    return subprocess.run(argv, cwd=tree.path, capture_output=True, text=True, check=False)


# --- what it looks like -----------------------------------------------------------------------


def test_it_is_a_checkout_of_the_baseline_under_the_repositorys_own_name(repo, tmpdir):
    write(repo / "src/a.py")
    write(repo / "run.sh").chmod(0o755)
    (repo / "link").symlink_to("src/a.py")
    (repo / "dangling").symlink_to("nowhere")
    for name in ODD_NAMES:
        write(repo / name, name.encode("utf-8", "surrogateescape"))
    commit_all(repo)
    with scratch(repo) as tree:
        assert tree.path.name == "project"
        assert tmpdir in tree.path.parents
        assert tree.baseline == run_git(repo, "rev-parse", "HEAD")
        assert files_of(tree.path) == files_of(repo)
        assert tree.notes == ()
        assert tree.drift([]) == []
        assert run(tree, "git", "status", "--porcelain").stdout == ""
    assert list(tmpdir.iterdir()) == []
    assert not (repo / ".git/llmch").exists()


def test_nobody_else_can_look_into_it(repo):
    with scratch(repo) as tree:
        room = tree.path.parent.parent
        assert stat.S_IMODE(room.stat().st_mode) == 0o700
        assert room not in tree.private_tmp.parents or tree.path not in tree.private_tmp.parents


@pytest.mark.parametrize(
    ("settings", "attributes"),
    [
        ({"core.autocrlf": "true"}, ""),
        ({}, "*.txt text eol=crlf\n"),
        ({"filter.turn.clean": "tr a-z b-za", "filter.turn.smudge": "tr b-za a-z"}, "*.txt filter=turn\n"),
        ({"core.symlinks": "false"}, ""),
    ],
)
@pytest.mark.parametrize("place", [".gitattributes", ".git/info/attributes"])
def test_files_come_out_as_in_the_users_checkout(settings, attributes, place, repo):
    for key, value in settings.items():
        run_git(repo, "config", key, value)
    write(repo / place, attributes or "# none\n")
    write(repo / "a.txt", "one\ntwo\n")
    (repo / "link").symlink_to("a.txt")
    commit_all(repo)
    for path in [path for path in repo.iterdir() if path.name != ".git"]:
        path.unlink()
    run_git(repo, "checkout", "-q", "--", ".")
    with scratch(repo) as tree:
        assert files_of(tree.path) == files_of(repo)
        assert tree.drift([]) == []


def test_rules_of_the_users_global_configuration_hold_even_where_they_are_tied_to_a_place(
    repo, tmp_path, monkeypatch
):
    home = write(tmp_path / "config", f'[includeIf "gitdir:{repo}/"]\n\tpath = {tmp_path}/more\n')
    write(tmp_path / "more", "[core]\n\tautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home))
    write(repo / "a.txt", "1\n")
    commit_all(repo)
    with scratch(repo) as tree:
        assert (tree.path / "a.txt").read_bytes() == b"1\r\n"


def test_git_in_it_answers_as_in_the_users_repository(repo):
    write(repo / ".gitignore", "*.log\n")
    write(repo / ".git/info/exclude", "*.private\n")
    commit_all(repo)
    run_git(repo, "tag", "-a", "v1.0", "-m", "release")
    run_git(repo, "branch", "side/branch")
    run_git(repo, "pack-refs", "--all")
    write(repo / "b.txt")
    commit_all(repo)
    run_git(repo, "branch", "loose")
    questions = [
        ("describe", "--tags"), ("log", "--format=%H %s", "--all"), ("rev-parse", "HEAD", "main"),
        ("for-each-ref",), ("config", "user.email"), ("check-ignore", "x.log", "x.private"), ("status", "-s"),
    ]  # fmt: skip
    with scratch(repo) as tree:
        for question in questions:
            assert run(tree, "git", *question).stdout.rstrip("\n") == run_git(repo, *question)
        assert run(tree, "git", "symbolic-ref", "HEAD").returncode != 0, "HEAD is detached"
        assert run(tree, "git", "commit", "-q", "--allow-empty", "-m", "by a test").returncode == 0
        assert run(tree, "git", "fsck").returncode == 0


def refs_in_a_reftable(tmp_path):
    if Git.at(tmp_path).ask("init", "--ref-format=reftable", "probe").exit_code != 0:
        return make_repo(tmp_path / "r")  # this git knows only files
    return make_repo(tmp_path / "r", "--ref-format=reftable")


def sha256(tmp_path):
    return make_repo(tmp_path / "r", "--object-format=sha256")


def shallow(tmp_path):
    origin = make_repo(tmp_path / "origin")
    write(origin / "b.txt")
    commit_all(origin)
    run_git(tmp_path, "clone", "-q", "--depth", "1", f"file://{origin}", "r")
    return tmp_path / "r"


def linked(tmp_path):
    run_git(make_repo(tmp_path / "main"), "worktree", "add", "-q", "-b", "side", str(tmp_path / "r"))
    return tmp_path / "r"


def borrowing(tmp_path):
    run_git(tmp_path, "clone", "-q", "--shared", str(make_repo(tmp_path / "origin")), "r")
    return tmp_path / "r"


def partial(tmp_path):
    origin = make_repo(tmp_path / "origin")
    write(origin / "old.txt")
    commit_all(origin)
    run_git(origin, "rm", "-q", "old.txt")
    run_git(origin, "commit", "-q", "-m", "without")
    run_git(origin, "config", "uploadpack.allowFilter", "true")
    run_git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
    run_git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{origin}", "r")
    return tmp_path / "r"


def sparse(tmp_path):
    repo = make_repo(tmp_path / "r")
    write(repo / "in/a")
    write(repo / "out/b")
    commit_all(repo)
    run_git(repo, "sparse-checkout", "set", "--cone", "--sparse-index", "in")
    return repo


def with_submodule(tmp_path):
    inner, repo = make_repo(tmp_path / "inner"), make_repo(tmp_path / "r")
    run_git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    commit_all(repo)
    return repo


def oddly_named(tmp_path):
    return make_repo(tmp_path / '"a b\n\\c#' / "my project")


def with_split_index(tmp_path):
    repo = make_repo(tmp_path / "r")
    for key in ("core.splitIndex", "core.untrackedCache", "feature.manyFiles"):
        run_git(repo, "config", key, "true")
    run_git(repo, "update-index", "--split-index")
    return repo


KINDS = [refs_in_a_reftable, sha256, shallow, linked, borrowing, partial, sparse, with_submodule, oddly_named,
         with_split_index]  # fmt: skip


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_repository_of_any_kind_can_be_worked_on(make, tmp_path, tmpdir):
    repo = make(tmp_path)
    before = everything(repo)
    with scratch(repo) as tree:
        assert (tree.path / "README.md").read_text() == "# a project\n"
        listed = run(tree, "git", "ls-files", "-s").stdout
        assert (
            listed
            == run(
                tree, "git", "ls-tree", "-r", "--format=%(objectmode) %(objectname) 0\t%(path)", "HEAD"
            ).stdout
        )
        write(tree.path / "README.md", "2\n")
        write(tree.path / "new.txt")
        assert tree.drift(["new.txt"]) == ["README.md"]
        tree.reset()
        assert tree.drift([]) == []
        assert (
            run(tree, "git", "rev-list", "--count", "HEAD").stdout
            == run_git(repo, "rev-list", "--count", "HEAD") + "\n"
        )
        assert len(tree.tree_hash(["README.md"])) == len(tree.baseline)
    assert everything(repo) == before
    assert list(tmpdir.iterdir()) == []


def test_objects_that_a_partial_clone_lacks_are_fetched_for_the_tree_and_not_into_the_clone(tmp_path):
    repo = partial(tmp_path)
    before = everything(repo)
    with scratch(repo, "HEAD~1") as tree:
        assert (tree.path / "old.txt").read_text() == "x\n"
    assert everything(repo) == before


# --- nothing that commands do reaches the user ---------------------------------------------------

HOSTILE = [
    "git branch -f main HEAD~1",
    "git branch -D side",
    "git tag -d v1",
    "git config user.name Mallory",
    "git config filter.x.smudge 'touch /tmp/never'",
    "echo changed >> README.md; git stash",
    "git worktree prune; git worktree add -f ../other main",
    "git remote remove origin; git push origin main",
    "git push --force origin HEAD~1:main",
    "git gc --prune=now --aggressive",
    "git reflog expire --expire=now --all; git prune --expire=now",
    "git update-ref -d refs/heads/main",
    "git symbolic-ref HEAD refs/heads/main; git commit -q --allow-empty -m mine; git reset -q --hard HEAD~2",
    "git checkout -q main; git commit -q --allow-empty -m mine",
    "mkdir -p .git/hooks; printf '#!/bin/sh\\ntouch never' > .git/hooks/post-checkout; chmod +x .git/hooks/*",
    "git submodule init; git notes add -m note",
    "rm -rf .git",
    "git update-index --assume-unchanged README.md; echo hidden >> README.md",
]


@pytest.mark.parametrize("command", HOSTILE)
def test_no_git_command_in_the_tree_changes_a_byte_of_the_users_repository(command, repo, tmp_path):
    write(repo / "b.txt")
    commit_all(repo)
    run_git(repo, "branch", "side")
    run_git(repo, "tag", "v1")
    run_git(tmp_path, "init", "-q", "--bare", "remote.git")
    run_git(repo, "remote", "add", "origin", str(tmp_path / "remote.git"))
    run_git(repo, "push", "-q", "origin", "main")
    before, upstream = everything(repo), everything(tmp_path / "remote.git")
    with scratch(repo) as tree:
        run(tree, "sh", "-c", command)
        drift = {"stash": [], "README": ["README.md"], "HEAD~2": ["b.txt"]}
        assert tree.drift([]) == next((paths for word, paths in drift.items() if word in command), [])
        assert Repository.open(repo).look()
        tree.reset()
        assert files_of(tree.path) == files_of(repo)
        assert (
            run(tree, "git", "rev-parse", "HEAD", "main", "side").stdout
            == run_git(repo, "rev-parse", "HEAD", "main", "side") + "\n"
        )
        assert run(tree, "git", "status", "--porcelain").stdout == ""
    now = everything(repo)
    now.pop(".git/llmch.lock", None)
    assert now == before
    assert everything(tmp_path / "remote.git") == upstream


def test_a_linked_work_tree_would_not_have_kept_them_out(repo, tmp_path):
    """Why it is no linked work tree: the first commands of the list above, in one."""
    write(repo / "b.txt")
    commit_all(repo)
    run_git(repo, "switch", "-q", "-c", "work")
    run_git(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    first = run_git(repo, "rev-parse", "main~1")
    run_git(tmp_path / "linked", "branch", "-f", "main", "HEAD~1")
    run_git(tmp_path / "linked", "config", "user.name", "Mallory")
    assert run_git(repo, "rev-parse", "main") == first
    assert run_git(repo, "config", "user.name") == "Mallory"
    assert (repo / ".git/worktrees/linked").exists(), "and this is what a kill leaves behind"


def test_settings_that_a_command_wrote_start_no_program_of_ours(repo, tmp_path):
    sprung = tmp_path / "sprung"
    with scratch(repo) as tree:
        for key in ("core.fsmonitor", "filter.x.smudge", "filter.x.clean", "diff.external", "core.pager"):
            run(tree, "git", "config", key, f"touch {sprung}; cat")
        write(tree.path / ".gitattributes", "* filter=x\n")
        write(tree.path / "README.md", "changed\n")
        assert tree.drift([]) == [".gitattributes", "README.md"]
        tree.tree_hash(["README.md", ".gitattributes"])
        tree.reset()
        assert not sprung.exists()


def test_no_address_no_credential_and_no_hook_is_in_it(repo):
    for key, value in {
        "remote.origin.url": "https://user:hunter2@example.org/x",
        "http.https://example.org/.extraheader": "AUTHORIZATION: basic hunter2",
        "credential.helper": "store --file=hunter2",
        "url.https://hunter2@example.org/.insteadOf": "https://example.org/",
        "branch.main.remote": "origin",
        "alias.hunter2": "!sh",
        "core.hooksPath": "hunter2",
        "diff.external": "hunter2",
        "include.path": "hunter2",
    }.items():
        run_git(repo, "config", key, value)
    with scratch(repo) as tree:
        assert "hunter2" not in (tree.path / ".git/config").read_text()
        assert not (tree.path / ".git/hooks").exists()


def test_values_of_any_form_keep_their_meaning(repo):
    odd = {
        'filter.a"b\\c.clean': "printf \"%s\\n\" 'x; # y' \\\\",
        "filter.sub.section.smudge": " leading and trailing ",
        "filter.new.line": "one\ntwo\tthree",
    }
    for key, value in odd.items():
        run_git(repo, "config", key, value)
    with open(repo / ".git/config", "a") as config:
        config.write('[filter "bare"]\n\trequired\n')
    with scratch(repo) as tree:
        for key, value in odd.items():
            assert run(tree, "git", "config", "-z", key).stdout == f"{value}\0"
        assert run(tree, "git", "config", "--type=bool", "filter.bare.required").stdout == "true\n"


# --- attempts ---------------------------------------------------------------------------------------


def test_drift_and_tree_hash_are_about_the_baseline_whatever_commands_committed(repo):
    write(repo / ".gitignore", "*.log\n")
    commit_all(repo)
    with scratch(repo) as tree:
        write(tree.path / "touched.txt", "t\n")
        write(tree.path / "README.md", "r\n")
        write(tree.path / "x.log")
        run(tree, "git", "add", "-A")
        run(tree, "git", "commit", "-q", "-m", "by a command")
        assert tree.drift(["touched.txt"]) == ["README.md"]
        wanted = tree.tree_hash(["touched.txt"])
        run_git(repo, "switch", "-q", "-c", "proof")
        write(repo / "touched.txt", "t\n")
        commit_all(repo)
        assert wanted == run_git(repo, "rev-parse", "proof^{tree}")


def test_a_change_of_the_same_size_and_time_is_a_change_whatever_the_user_trusts(repo):
    run_git(repo, "config", "core.checkStat", "minimal")
    run_git(repo, "config", "core.trustctime", "false")
    run_git(repo, "config", "core.ignoreStat", "true")
    repository = Repository.open(repo)
    repository.look()
    plan = repository.plan_branch("work", "unused")
    with scratch_tree(repository, plan.baseline) as tree:
        readme = tree.path / "README.md"
        seen = readme.stat()
        readme.write_bytes(readme.read_bytes().upper())
        os.utime(readme, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        assert tree.drift([]) == ["README.md"]
        built = repository.build_commit(plan, [("README.md", readme.read_bytes())], "m", index=tree.index)
        assert built.tree == tree.tree_hash(["README.md"])
        assert built.commit is not None
        tree.reset()
        assert tree.drift([]) == []


MESS = {
    "files": lambda root: [write(root / name) for name in ("new.txt", "a/b/c.txt", "x.log", *ODD_NAMES)],
    "changes": lambda root: [write(root / name, "2\n") for name in ("README.md", "run.sh", "src/a.py")],
    "deletions": lambda root: [(root / "README.md").unlink(), shutil.rmtree(root / "src")],
    "modes": lambda root: [(root / "run.sh").chmod(0o644), (root / "README.md").chmod(0o000)],
    "a file for a directory": lambda root: [shutil.rmtree(root / "src"), write(root / "src")],
    "a directory for a file": lambda root: [(root / "README.md").unlink(), write(root / "README.md/x")],
    "links": lambda root: [(root / "README.md").unlink(), (root / "README.md").symlink_to("/etc/passwd"),
                           (root / "more").symlink_to("..")],
    "empty directories": lambda root: (root / "e/f/g").mkdir(parents=True),
    "a nested repository": lambda root: [make_repo(root / "nested/repo")],
    "closed directories": lambda root: [write(root / "c/d"), (root / "c").chmod(0o500),
                                        (root / "src").chmod(0o500)],
    "a FIFO and a socket": lambda root: [os.mkfifo(root / "fifo"), os.mkfifo(root / "src/fifo")],
    "a stale lock": lambda root: write(root / ".git/index.lock"),
    "no repository": lambda root: shutil.rmtree(root / ".git"),
    "a repository that is a file": lambda root: [shutil.rmtree(root / ".git"), write(root / ".git")],
    "a link for a repository": lambda root: [shutil.rmtree(root / ".git"), (root / ".git").symlink_to("/")],
    "nothing": shutil.rmtree,
    "a file for the tree": lambda root: [shutil.rmtree(root), write(root)],
    "a link for the tree": lambda root: [shutil.rmtree(root), root.symlink_to("/")],
    "same size and time": lambda root: [write(root / "run.sh", "y\n"), os.utime(root / "run.sh", (1, 1))],
}  # fmt: skip


@pytest.mark.parametrize("mess", MESS.values(), ids=MESS.keys())
def test_a_reset_brings_every_byte_back(mess, common_ground, monkeypatch):
    repo = make_repo(common_ground / "project")
    tmpdir = common_ground / "tmp"
    tmpdir.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmpdir))
    write(repo / ".gitignore", "*.log\n")
    write(repo / "src/a.py")
    write(repo / "run.sh").chmod(0o755)
    commit_all(repo)

    def work():
        with scratch(repo) as tree:
            wanted = files_of(tree.path)
            write(tree.private_tmp / "litter")
            mess(tree.path)
            tree.reset()
            assert files_of(tree.path) == wanted
            assert tree.drift([]) == []
            assert run(tree, "git", "status", "--porcelain").stdout == ""
            assert list(tree.private_tmp.iterdir()) == []
        assert list(tmpdir.iterdir()) == []

    assert as_nobody(common_ground, work) == 0


def test_a_directory_deeper_than_any_path_can_be_goes_away(repo, tmpdir):
    with scratch(repo) as tree:
        here = os.open(tree.path, os.O_RDONLY)
        for _ in range(3000):
            os.mkdir("deep", dir_fd=here)
            below = os.open("deep", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        tree.reset()
        assert sorted(path.name for path in tree.path.iterdir()) == [".git", "README.md"]
    assert list(tmpdir.iterdir()) == []


# --- ignored paths that commands need -----------------------------------------------------------------


@pytest.fixture
def furnished(repo):
    """A repository with an environment, a secret and modules that git ignores."""
    write(repo / ".gitignore", ".env\n.venv/\nnode_modules/\nlocal.cfg\n")
    write(repo / "src/pkg/__init__.py")
    commit_all(repo)
    write(repo / ".env", "KEY=1\n").chmod(0o600)
    write(repo / ".venv/pyvenv.cfg", "home = /usr/bin\n")
    write(repo / ".venv/bin/tool", f"#!{repo}/.venv/bin/python\nprint('{repo}2')\n").chmod(0o755)
    write(repo / ".venv/lib/site-packages/__editable__.pth", f"{repo}/src\n")
    write(repo / ".venv/lib/binary.so", b"\0ELF" + os.fsencode(repo) + b"\0")
    (repo / ".venv/bin/python").symlink_to("/usr/bin/python3")
    (repo / ".venv/lib64").symlink_to("lib")
    write(repo / "node_modules/dep/index.js")
    (repo / "node_modules/.bin").mkdir()
    (repo / "node_modules/.bin/dep").symlink_to("../dep/index.js")
    (repo / "node_modules/mine").symlink_to(repo / "src/pkg")
    (repo / "node_modules/neighbour").symlink_to("../../outside")
    write(repo / "local.cfg", "1\n")
    return repo


def test_commands_get_copies_of_what_git_ignores_and_never_the_thing_itself(furnished):
    before = everything(furnished)
    with scratch(furnished) as tree:
        assert tree.notes == ()
        assert (tree.path / ".env").read_text() == "KEY=1\n"
        assert stat.S_IMODE((tree.path / ".env").stat().st_mode) == 0o600
        assert os.access(tree.path / ".venv/bin/tool", os.X_OK)
        assert not (tree.path / "local.cfg").exists()
        assert tree.drift([]) == []
        assert run(tree, "git", "status", "--porcelain").stdout == ""
        for place, _, names in os.walk(tree.path):
            for name in names:
                path = Path(place, name)
                if not path.is_symlink():
                    assert path.stat().st_nlink == 1
                    write(path, "overwritten\n")
        write(tree.path / "node_modules/mine/__init__.py", "overwritten through a link\n")
        tree.reset()
        assert (tree.path / ".env").read_text() == "KEY=1\n"
        assert (tree.path / "node_modules/dep/index.js").read_text() == "x\n"
    assert everything(furnished) == before


def test_what_names_the_repository_by_its_full_path_names_the_tree_in_the_copy(furnished):
    with scratch(furnished) as tree:
        site = tree.path / ".venv/lib/site-packages/__editable__.pth"
        assert site.read_text() == f"{tree.path}/src\n"
        tool = (tree.path / ".venv/bin/tool").read_text()
        assert tool == f"#!{tree.path}/.venv/bin/python\nprint('{furnished}2')\n"
        assert os.fsencode(furnished) in (tree.path / ".venv/lib/binary.so").read_bytes()
        links = {
            name: os.readlink(tree.path / name)
            for name in (".venv/bin/python", ".venv/lib64", "node_modules/.bin/dep", "node_modules/mine",
                         "node_modules/neighbour")
        }  # fmt: skip
        assert links == {
            ".venv/bin/python": "/usr/bin/python3",
            ".venv/lib64": "lib",
            "node_modules/.bin/dep": "../dep/index.js",
            "node_modules/mine": f"{tree.path}/src/pkg",
            "node_modules/neighbour": f"{furnished.parent}/outside",
        }


def test_more_paths_can_be_asked_for_and_only_ignored_ones_are_given(furnished):
    write(furnished / "src/pkg/local.cfg", "2\n")
    with scratch(
        furnished, share=("local.cfg", "./src/pkg/local.cfg", str(furnished / "README.md"), "gone")
    ) as tree:
        assert (tree.path / "local.cfg").read_text() == "1\n"
        assert (tree.path / "src/pkg/local.cfg").read_text() == "2\n"
        assert tree.drift([]) == []


@pytest.mark.parametrize("path", ["..", ".", "/etc/passwd", ".git", ".git/config", "../other", "src/../.."])
def test_what_lies_elsewhere_cannot_be_asked_for(path, repo):
    with pytest.raises(Refused, match="names nothing below the repository"), scratch(repo, share=(path,)):
        pass


def test_what_git_tracks_is_not_copied_over(repo):
    write(repo / ".gitignore", ".env\nvenv/\n")
    write(repo / ".env", "tracked\n")
    write(repo / "venv/kept.txt", "tracked\n")
    run_git(repo, "add", "-A", "-f")
    commit_all(repo)
    write(repo / "venv/other.txt")
    with scratch(repo) as tree:
        assert (tree.path / ".env").read_text() == "tracked\n"
        assert not (tree.path / "venv/other.txt").exists()


def test_a_link_that_stands_for_an_environment_is_followed_once(repo, tmp_path):
    write(repo / ".gitignore", ".venv\n.env\n")
    commit_all(repo)
    write(tmp_path / "envs/one/bin/tool")
    write(tmp_path / "secrets", "KEY=2\n")
    (repo / ".venv").symlink_to(tmp_path / "envs/one")
    (repo / ".env").symlink_to(tmp_path / "secrets")
    with scratch(repo) as tree:
        assert not (tree.path / ".venv").is_symlink()
        assert (tree.path / ".venv/bin/tool").read_text() == "x\n"
        write(tree.path / ".env", "overwritten\n")
        assert tree.drift([]) == []
    assert (tmp_path / "secrets").read_text() == "KEY=2\n"


def test_copies_are_bounded_and_what_is_left_out_is_said(furnished):
    write(furnished / "node_modules/big", b"x" * 300_000)
    with scratch(furnished, copy_limit=200_000) as tree:
        assert (tree.path / ".venv/bin/tool").exists()
        assert not (tree.path / "node_modules").exists()
        (note,) = tree.notes
        assert note.startswith("node_modules is not in the scratch tree: copies are limited to")


# --- ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_it_is_gone_however_the_run_ends(error, repo, tmpdir):
    with pytest.raises(type(error)), scratch(repo):
        raise error
    assert list(tmpdir.iterdir()) == []
    assert not (repo / ".git/llmch").exists()


def test_one_that_cannot_be_removed_is_told_of_and_left_to_the_next_run(common_ground, monkeypatch):
    repo = make_repo(common_ground / "project")
    tmpdir = common_ground / "tmp"
    tmpdir.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmpdir))

    class Crash(Exception):
        pass

    def fail():
        with scratch(repo):
            tmpdir.chmod(0o555)
            raise Crash

    def work():
        with pytest.raises(Crash) as crash:
            fail()
        assert [note[:13] for note in crash.value.__notes__] == ["scratch tree "]
        repository = Repository.open(repo)
        with repository.lock():
            repository.recover()  # its run is alive
            assert len(repository.ledger.scratch_trees()) == 1
        tmpdir.chmod(0o755)

    def next_run():
        repository = Repository.open(repo)
        with repository.lock():
            assert repository.recover() is None
        assert list(tmpdir.iterdir()) == []
        assert not repository.ledger.directory.exists()

    assert as_nobody(common_ground, work) == 0
    assert as_nobody(common_ground, next_run) == 0


def test_a_baseline_that_cannot_be_checked_out_leaves_nothing_behind(repo, tmpdir):
    with pytest.raises(GitError), scratch_tree(Repository.open(repo), "0" * 40):
        pass
    assert list(tmpdir.iterdir()) == []
    assert not (repo / ".git/llmch").exists()


def test_a_long_checkout_can_be_interrupted(repo, tmpdir):
    class Enough(Exception):
        pass

    run_git(repo, "config", "filter.slow.smudge", "sleep 60; cat")
    write(repo / ".git/info/attributes", "README.md filter=slow\n")

    def poll():
        raise Enough

    repository = Repository.open(repo)
    baseline = run_git(repo, "rev-parse", "HEAD")
    with pytest.raises(Enough), repository.lock(poll=poll), scratch_tree(repository, baseline):
        pass
    assert list(tmpdir.iterdir()) == []


def test_temporary_files_inside_the_repository_are_refused(repo, monkeypatch):
    (repo / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(repo / "tmp"))
    says = r"temporary files would lie inside the repository, in .*: set TMPDIR"
    with pytest.raises(Refused, match=says), scratch(repo):
        pass


def test_an_overlay_is_refused_as_long_as_there_is_none(repo):
    says = "--scratch overlay is not built yet: use --scratch worktree"
    with pytest.raises(Refused, match=says), scratch(repo, kind="overlay"):
        pass
