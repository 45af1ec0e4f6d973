"""The working branch: what it may be called, and where it starts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from factory.git import Git, GitError, Refused, one_line, shown

PROTECTED_BRANCHES = frozenset({"main", "master"})

# What `git check-ref-format` refuses, plus what would be read as an option or as HEAD.
_BAD_NAME = re.compile(
    r"""
      [\x00-\x20\x7f~^:?*\[\\]      # control characters, space, and git's own notation
    | \.\. | @\{ | // | ^@$ | ^/ | /$ | \.$
    | (^|/)\. | \.lock(/|$)         # a component that is hidden, or that is a lock's name
    | ^- | ^HEAD$
    """,
    re.VERBOSE,
)
_MAX_COMPONENT_BYTES = 255 - len(".lock")
_MAX_NAME_BYTES = 1024


@dataclass(frozen=True)
class Head:
    """What is checked out: a branch by its full name, and its commit."""

    ref: str
    commit: str


@dataclass(frozen=True)
class BranchPlan:
    """Where a commit would go. Nothing of it has happened yet."""

    name: str
    baseline: str
    """The commit that attempts start from and the new commit stands on."""
    baseline_tree: str | None
    """None when nobody has asked git for it yet."""
    old: str | None
    """Where the branch is now; None when it is to be made."""
    head: Head
    """What is checked out, and has to be brought along."""

    @property
    def ref(self) -> str:
        """The full name."""
        return f"refs/heads/{self.name}"

    @property
    def exists(self) -> bool:
        """Whether the branch is there already."""
        return self.old is not None


def check_name(name: str) -> None:
    """Refuse a name that is protected, or that git would refuse or misread. Raises `Refused`."""
    short = re.sub(r"^(refs/)?heads/", "", name, flags=re.IGNORECASE)
    if short.casefold() in PROTECTED_BRANCHES:
        raise Refused(f"branch {shown(name)} is protected: --branch names another one for the work")
    if name.startswith("refs/"):
        raise Refused(f"{shown(name)} is the full name of a ref: give the branch name alone")
    sizes = [len(part.encode("utf-8", "surrogateescape")) for part in name.split("/")]
    if (
        not name
        or _BAD_NAME.search(name)
        or max(sizes) > _MAX_COMPONENT_BYTES
        or sum(sizes) > _MAX_NAME_BYTES
    ):
        raise Refused(f"{shown(name[:200])!r} cannot be a branch name: see `git help check-ref-format`")


def plan_branch(
    git: Git,
    top: Path,
    common_dir: Path,
    head: Head,
    name: str,
    *,
    create: bool,
    reuse: bool,
    commit_hash: str | None,
) -> BranchPlan:
    """Decide what becomes of the branch `name`. Raises `Refused`, and changes nothing."""
    check_name(name)
    in_place = f"refs/heads/{name}" == head.ref and not create and commit_hash is None
    if in_place and not (common_dir / "worktrees").exists():
        # The branch that is checked out, as in every order of a sequence but the first: all is known.
        return BranchPlan(name, head.commit, None, head.commit, head)
    refs = _refs_around(git, name, head)
    found = refs.get(f"refs/heads/{name}")
    if found is None:
        _refuse_shadowed(name, refs, head)
        if reuse:
            raise Refused(f"branch {shown(name)} does not exist: drop --reuse-branch to create it")
    elif create:
        raise Refused(
            f"branch {shown(name)} exists: drop --create-branch to reuse it, or choose another name"
        )
    elif found.target:
        raise Refused(
            f"branch {shown(name)} is another name of {shown(found.target)}: use a branch of its own"
        )
    elif found.worktree and os.path.realpath(found.worktree) != os.path.realpath(top):
        raise Refused(
            f"branch {shown(name)} is checked out in {shown(found.worktree)}: run there, or choose another"
        )
    start = found or refs.get(head.ref)
    if start is None:
        raise Refused(f"{shown(head.ref)} has vanished while llmch looked at the repository: run again")
    baseline, tree = start.commit, start.tree
    if commit_hash is not None:
        baseline, tree = _resolve(git, commit_hash)
        if found is not None and baseline != found.commit:
            raise Refused(
                f"branch {shown(name)} is at {found.commit[:12]}, not at --commit-hash {shown(commit_hash)}: "
                "a commit hash only says where a new branch starts"
            )
    return BranchPlan(name, baseline, tree, found.commit if found else None, head)


@dataclass(frozen=True)
class _Ref:
    commit: str
    tree: str
    worktree: str
    """Where it is checked out, or nothing."""
    target: str
    """What it stands for, when it is a symbolic ref."""


def _refs_around(git: Git, name: str, head: Head) -> dict[str, _Ref]:
    """The branch, those above and below it in the name space, and the one that is checked out."""
    full = f"refs/heads/{name}"
    above = [full[:end] for end in range(len("refs/heads/"), len(full)) if full[end] == "/"]
    exact = [f"{ref[:-1]}[{ref[-1]}]" for ref in (*above, head.ref)]  # a plain name would match all below it
    fields = ("refname", "objectname", "tree", "worktreepath", "symref")
    wanted = "%00".join(f"%({field})" for field in fields) + "%00"
    said = git("for-each-ref", f"--format={wanted}", full, *exact).stdout.decode("utf-8", "surrogateescape")
    words = iter(said.split("\0")[:-1])
    records = zip(*[words] * len(fields), strict=True)
    return {ref.lstrip("\n"): _Ref(*rest) for ref, *rest in records}


def _refuse_shadowed(name: str, refs: dict[str, _Ref], head: Head) -> None:
    full = f"refs/heads/{name}"
    for ref in sorted(refs):
        if ref.startswith(f"{full}/") or full.startswith(f"{ref}/"):
            other = shown(ref.removeprefix("refs/heads/"))
            raise Refused(f"branch {shown(name)} cannot be made beside branch {other}: choose another name")
    # A case-insensitive file system would take the two for one.
    if head.ref.casefold() == full.casefold() and head.ref != full:
        raise Refused(f"branch {shown(name)} differs only in case from the one that is checked out")


def _resolve(git: Git, commit_hash: str) -> tuple[str, str]:
    """The full commit and tree id of what the user calls a commit."""
    unknown = Refused(f"--commit-hash {shown(commit_hash)} names no commit of this repository")
    if not commit_hash or not commit_hash.isprintable() or " " in commit_hash:
        raise unknown
    asked = "".join(f"{commit_hash}^{{{kind}}}\n" for kind in ("commit", "tree"))
    try:
        answer = git("cat-file", "--batch-check=%(objecttype) %(objectname)", stdin=asked.encode()).text
    except GitError as error:
        raise Refused(f"--commit-hash {shown(commit_hash)}: {one_line(str(error))}") from None
    found = dict(line.split(" ", 1) for line in answer.splitlines() if " " in line)
    if not {"commit", "tree"} <= found.keys():
        raise unknown
    return found["commit"], found["tree"]
