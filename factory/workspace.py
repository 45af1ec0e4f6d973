"""The user's repository: looked at, given a branch and a commit, pushed, and put in order after a kill."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from factory.branches import BranchPlan, Head, plan_branch
from factory.checkout import Change, Checkout, Move, folders_above
from factory.git import (
    CHECKOUT_SECONDS,
    Git,
    GitError,
    Refused,
    listed,
    one_line,
    path_bytes,
    path_text,
    shown,
)
from factory.ledger import (
    At,
    Ledger,
    Origin,
    Owner,
    Publication,
    Recovery,
    Step,
    nowhere,
    taking_turns,
)
from factory.tree_files import make_writable, remove_tree, write_files
from shared.process import end_those_below

__all__ = [
    "BranchPlan",
    "Identity",
    "Origin",
    "Published",
    "Recovery",
    "Refused",
    "Repository",
    "Step",
    "detect_repo_drift",
    "get_baseline_commit",
    "get_tree_hash",
    "has_commits",
    "is_clean",
    "is_git_repo",
    "rollback",
]

_FALLBACK_NAME, _FALLBACK_EMAIL = "llmch", "llmch@localhost"
_MAX_ARGUMENT_BYTES = 64 * 1024

SCRATCH_PREFIX = "llmch-"
"""How the directory of every scratch tree is called, so that a recovery removes nothing else."""

# What git leaves in its directory while something is half done, and how the user ends it.
_IN_PROGRESS = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
}

# What a push may see beyond what git sees elsewhere: the ways to the user's own credentials.
_PUSH_ENVIRONMENT = (
    "SSH_AUTH_SOCK", "SSH_AGENT_PID", "KRB5CCNAME", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR",
    "GH_TOKEN", "GITHUB_TOKEN", "GITLAB_TOKEN",
    "http_proxy", "https_proxy", "no_proxy", "all_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
)  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """Who a commit is by: the variables that git reads."""

    variables: Mapping[str, str]


@dataclass(frozen=True)
class Built:
    """A commit that nothing refers to yet. `commit` is None when the writes change nothing."""

    commit: str | None
    tree: str


@dataclass(frozen=True)
class Published:
    """A branch that is at its commit."""

    commit: str | None
    """None when the proposal changed nothing: the branch is at its baseline then."""
    tree: str
    checkout_problem: str | None
    """Why the user's checkout stayed where it was, and how to go on; None when it was brought along."""


class Repository:
    """A repository of the user's, at its top level. `Repository.open` makes one."""

    def __init__(self, top: Path, git_dir: Path, common_dir: Path, environment: Mapping[str, str]) -> None:
        self.top = top
        self.git_dir = git_dir
        self.common_dir = common_dir
        self.environment = environment
        self.ledger = Ledger(common_dir)
        # A damaged .git must not make git go on looking further up and find somebody else's repository.
        self.git = Git.at(top, environment).with_env(GIT_CEILING_DIRECTORIES=top.parent)
        self.poll: Callable[[], None] | None = None
        """What long waits that change nothing of the user's look at; what it raises ends them."""
        self._head: Head | None = None

    # --- opening -------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path, environment: Mapping[str, str] | None = None) -> Repository:
        """The repository whose top level is `path`. Raises `Refused` where there is none; looks only."""
        environment = os.environ if environment is None else environment
        if not os.path.isdir(path):
            raise Refused(f"{shown(os.fspath(path))} is no directory: --repo names a git repository")
        top = Path(os.path.realpath(path))
        git_dir = _git_dir_of(top)
        common_dir = None if git_dir is None else _common_dir_of(git_dir)
        if git_dir is None or common_dir is None:
            raise _not_a_repository(top, environment)
        return cls(top, git_dir, common_dir, environment)

    @contextmanager
    def lock(
        self,
        on_wait: Callable[[str], None] = lambda _text: None,
        poll: Callable[[], None] = lambda: None,
    ) -> Iterator[None]:
        """Hold this repository's turn. Git that changes something holds it too, should we be killed.

        `on_wait` is told once who is waited for; `poll` is called while waiting.
        """
        with taking_turns(self.common_dir, on_wait, poll) as descriptor:
            self.git = replace(self.git, keep_open=(descriptor,))
            self.poll = poll
            try:
                yield
            finally:
                self.git = replace(self.git, keep_open=())

    # --- looking -------------------------------------------------------------------------

    def look(self) -> Head:
        """What is checked out, in a repository that is ready for a run. Raises `Refused`, changes nothing."""
        try:
            status = self.git(
                "status",
                "--porcelain=v2",
                "--branch",
                "-z",
                "--untracked-files=all",
                timeout=CHECKOUT_SECONDS,
            ).stdout
        except GitError as error:
            raise Refused(one_line(str(error))) from None
        branch, commit, changed = _read_status(status)
        if commit is None:
            raise Refused(f"{shown(str(self.top))} has no commit yet: make a first one")
        self._refuse_unfinished()
        if branch is None:
            raise Refused(f"HEAD is detached at {commit[:12]}: `git switch BRANCH` first")
        if changed:
            raise Refused(f"uncommitted changes in {listed(changed)}: commit or stash them first")
        self._head = Head(f"refs/heads/{branch}", commit)
        return self._head

    def _refuse_unfinished(self) -> None:
        """Refuse a repository that somebody else is at work on, or that cannot be written to."""
        if other := self.settings.get("core.worktree"):
            elsewhere = os.path.realpath(self.git_dir / other)
            if elsewhere != str(self.top):
                raise Refused(f"the work tree of {shown(str(self.git_dir))} is {shown(elsewhere)}: run there")
        for name, what in _IN_PROGRESS.items():
            if (self.git_dir / name).exists():
                raise Refused(f"a {what} is in progress: `git {what} --continue` or `--abort` it first")
        lock = self.git_dir / "index.lock"
        if not _goes_away(lock):
            raise Refused(
                f"{shown(str(lock))} exists: wait for the git command that holds it, "
                "or remove the file when none is running"
            )
        objects = self.common_dir / "objects"
        if not os.access(objects, os.W_OK):
            raise Refused(f"cannot write to {shown(str(objects))}: check its permissions")

    @cached_property
    def settings(self) -> dict[str, str]:
        """Git's configuration as it is in force here; of several values the last. Keys as git prints them."""
        return dict(self.all_settings)

    @cached_property
    def all_settings(self) -> list[tuple[str, str]]:
        """Every value of git's configuration, in the order git reads them."""
        raw = self.git("config", "--list", "-z").stdout.decode("utf-8", "surrogateescape")
        entries = (entry.partition("\n") for entry in raw.split("\0")[:-1])
        return [(key, value if line else "true") for key, line, value in entries]

    def first_remote(self) -> str | None:
        """The name of the remote that is configured first, or None."""
        for key, _ in self.all_settings:
            if key.startswith("remote.") and key.endswith((".url", ".pushurl")):
                return key.removeprefix("remote.").rpartition(".")[0]
        return None

    def identity(self) -> Identity:
        """The user's own identity where there is one, from the environment or the configuration."""
        found = {}
        for role in ("author", "committer"):
            for field, fallback in (("name", _FALLBACK_NAME), ("email", _FALLBACK_EMAIL)):
                variable = f"GIT_{role.upper()}_{field.upper()}"
                own = self.environment.get(variable)
                own = own or self.settings.get(f"{role}.{field}") or self.settings.get(f"user.{field}")
                if field == "email":
                    own = own or self.environment.get("EMAIL")
                # What git drops from a name, and refuses when nothing is left.
                left = "".join(char for char in own or "" if char.isprintable() and char not in "<>")
                found[variable] = left if left.strip(" .,:;\"'\\") else fallback
            date = f"GIT_{role.upper()}_DATE"
            if self.environment.get(date):
                found[date] = self.environment[date]
        return Identity(found)

    def refuse_inside(self, path: str | Path, flag: str) -> None:
        """Refuse a directory for our own files in the repository, but for one that git ignores."""
        wanted = Path(os.path.realpath(path))
        for place in (wanted, wanted / "factory"):  # runs are kept in the second
            if place == self.top or self.top in place.parents:
                inside = f"{shown(str(place))} ({flag}) lies inside the repository"
                if self.git_dir in (place, *place.parents) or self.common_dir in (place, *place.parents):
                    raise Refused(f"{inside}'s git directory: name a directory outside of it")
                below = os.fsencode(os.path.relpath(place, self.top)) + b"/"
                ignored = self.git.ask("check-ignore", "-q", "-z", "--stdin", stdin=below + b"\0")
                if place == self.top or ignored.exit_code != 0:
                    raise Refused(f"{inside}: name a directory outside of it, or one that git ignores")
                return

    # --- planning ------------------------------------------------------------------------

    def plan_branch(
        self,
        name: str | None,
        auto_name: str,
        *,
        create: bool = False,
        reuse: bool = False,
        commit_hash: str | None = None,
    ) -> BranchPlan:
        """Where the commit would go: to the branch `name`, else to a new one called `auto_name`.

        Raises `Refused`; changes nothing. Stands on the last `look`.
        """
        head = self._head or self.look()
        return plan_branch(
            self.git,
            self.top,
            self.common_dir,
            head,
            name or auto_name,
            create=create or name is None,
            reuse=reuse,
            commit_hash=commit_hash,
        )

    def blocking_paths(self, allowed_files: Iterable[str], plan: BranchPlan) -> list[str]:
        """What stands in the user's checkout where the commit would put a file, and is not git's.

        A file that is untracked or ignored, or a directory or a file where the other is needed.
        """
        checkout = self.checkout
        changes = checkout.changes(plan.head.commit, plan.baseline)
        allowed = sorted(set(allowed_files))
        standing = [path for path in allowed if os.path.lexists(self.top / path)]
        known = self._tracked(standing) | {change.path for change in changes}
        new = [Change.addition(path) for path in allowed if path not in known]
        found = checkout.in_the_way([*changes, *new])
        # What git itself keeps there belongs to the baseline: TR says in a brief what is wrong.
        return sorted(set(found) - self._tracked(found))

    def refuse_blocked(self, allowed_files: Iterable[str], plan: BranchPlan) -> None:
        """Refuse an order whose files are taken in the user's checkout, or belong to a submodule."""
        allowed = list(allowed_files)
        if blocked := self.blocking_paths(allowed, plan):
            raise Refused(
                f"{listed(blocked)} in the checkout is in the way of what is to be written: move it away"
            )
        if (self.top / ".gitmodules").exists():
            modules = self._submodules()
            if inside := [path for path in allowed if modules & {path, *folders_above(path)}]:
                raise Refused(f"{listed(inside)} belongs to a submodule: run the order in that repository")

    def _submodules(self) -> set[str]:
        entries = self.git("ls-files", "-s", "-z").stdout.split(b"\0")
        return {path_text(entry.partition(b"\t")[2]) for entry in entries if entry.startswith(b"160000 ")}

    def _tracked(self, paths: Sequence[str]) -> set[str]:
        """Those of `paths` that the index has as files."""
        git = self.git.with_env(GIT_LITERAL_PATHSPECS="1")
        found: set[str] = set()
        for some in _in_portions(paths):
            found |= {path_text(path) for path in git("ls-files", "-z", "--", *some).stdout.split(b"\0")}
        return found & set(paths)

    @property
    def checkout(self) -> Checkout:
        """The files that are checked out here, and their index."""
        return Checkout(self.git, self.top, self.git_dir, self.common_dir, self.ledger.directory / "checkout")

    # --- committing ----------------------------------------------------------------------

    def build_commit(
        self,
        plan: BranchPlan,
        writes: Iterable[tuple[str, bytes]],
        message: str,
        *,
        identity: Identity | None = None,
        index: Path | None = None,
    ) -> Built:
        """The commit of exactly `writes` on top of the baseline. Nothing refers to it yet.

        The bytes go through the rules of the repository as `git add` would send them: line endings,
        clean filters, attributes of the baseline and of the writes themselves. An existing file
        keeps its mode, a new one is no executable. `index` is one that stands at the baseline
        (a scratch tree has one); without it one is read. Raises `GitError` and `OSError`.
        """
        writes = list(writes)
        room = self.ledger.directory / "build"
        remove_tree(room)
        staging, private = room / "tree", room / "index"
        staging.mkdir(parents=True)
        try:
            write_files(staging, writes, durable=False)
            tree = self._stage(plan, [path for path, _ in writes], staging, private, index)
        finally:
            remove_tree(room)
            self.ledger.vanish_when_empty()
        if tree == plan.baseline_tree:
            return Built(None, tree)
        git = self.git.with_env(**(identity or self.identity()).variables)
        text = message.replace("\0", "").encode("utf-8", "backslashreplace")
        return Built(git("commit-tree", "-p", plan.baseline, tree, stdin=text).text, tree)

    def _stage(
        self, plan: BranchPlan, paths: list[str], staging: Path, private: Path, index: Path | None
    ) -> str:
        git = replace(self.git, cwd=staging).with_env(
            GIT_DIR=self.git_dir, GIT_WORK_TREE=staging, GIT_INDEX_FILE=private
        )
        if index is None:
            git("read-tree", plan.baseline)
        else:
            private.write_bytes(index.read_bytes())
        staged = git(
            "-c", "core.fileMode=false",  # the entry's mode counts, not that of the file that stands in
            "-c", "core.symlinks=true",  # or a file in the place of a link would stay a link
            "-c", "core.checkStat=default",  # or equal size and second would pass for equal content
            "-c", "core.trustctime=true",
            "-c", "core.safecrlf=false",  # it guards what a person typed; these bytes are on record
            "update-index", "--add", "-z", "--stdin",
            stdin=b"".join(path_bytes(path) + b"\0" for path in paths),
        )  # fmt: skip
        if b"Ignoring path" in staged.stderr:  # git passes over such a path and still says that all is well
            raise GitError(one_line(staged.complaint))
        return git("write-tree").text

    def publish(
        self,
        plan: BranchPlan,
        writes: Iterable[tuple[str, bytes]],
        message: str,
        origin: Origin,
        *,
        at: At = nowhere,
        index: Path | None = None,
    ) -> Published:
        """Make the commit, move the branch to it, and bring the checkout along.

        Raises `Refused`, `GitError` or `OSError`, and the branch and the checkout are as they were then.
        A branch that has moved stands; a checkout that could not follow is told, not raised. The ledger
        keeps the entry until `settle`, so that a run that dies before it has recorded its verdict is
        completed by the next one.
        """
        built = self.build_commit(plan, writes, message, index=index)
        at(Step.COMMIT_BUILT)
        commit = built.commit or plan.baseline
        checkout = self.checkout
        changes = checkout.changes(plan.head.commit, commit)
        if plan.baseline_tree is None and not changes:  # the baseline is what is checked out
            built, commit = Built(None, built.tree), plan.baseline
        folders = checkout.folders_for(changes)
        move = Move(plan.head.ref, plan.head.commit, plan.ref, commit, origin.run_id, folders)
        self.ledger.write_publication(
            Publication(
                owner=Owner.me(),
                origin=origin,
                branch=plan.name,
                ref_old=plan.old,
                head_ref=plan.head.ref,
                head_commit=plan.head.commit,
                commit=commit,
                tree=built.tree,
                made=built.commit is not None,
                top=str(self.top),
                git_dir=str(self.git_dir),
                folders=folders,
            )
        )
        at(Step.LEDGER_WRITTEN)
        problem = self._bring(plan, move, changes, at)
        return Published(built.commit, built.tree, _how_to_follow(plan.name, problem))

    def _bring(self, plan: BranchPlan, move: Move, changes: list[Change], at: At) -> str | None:
        """Move the branch, and the checkout if it can follow; returns why it could not."""
        moved = False

        def move_ref() -> None:
            nonlocal moved
            self._move_ref(plan, move.to_commit)
            moved = True

        try:
            problem = self.checkout.bring(move, changes, move_ref, at)
            if problem is not None:
                _refuse_in_place(move, problem)
                move_ref()
                at(Step.REF_MOVED)
        except (Refused, GitError, OSError) as error:
            if not moved:
                self.ledger.clear_publication()
                raise
            problem = str(error)
        return problem

    def _move_ref(self, plan: BranchPlan, commit: str) -> None:
        if plan.old == commit:
            return
        nothing = "0" * len(commit)
        try:
            self.git(
                "update-ref", "--no-deref", "-m", f"llmch: commit on {plan.name}",
                plan.ref, commit, plan.old or nothing,
            )  # fmt: skip
        except GitError as error:
            if self.commit_of(plan.ref) == commit:
                return  # it was done, and only then something went wrong
            raise Refused(
                f"branch {shown(plan.name)} was left as it is: {error}; the finished commit is {commit}"
            ) from None

    def commit_of(self, ref: str) -> str | None:
        """The commit a ref is at, or None when there is no such ref."""
        answer = self.git.ask("rev-parse", "--verify", "-q", "--end-of-options", f"{ref}^{{commit}}")
        return answer.text if answer.exit_code == 0 else None

    def settle(self, at: At = nowhere) -> None:
        """The run's own records tell what became of the publication; the ledger may forget it."""
        self.ledger.clear_publication()
        at(Step.LEDGER_CLEARED)

    # --- after a kill --------------------------------------------------------------------

    def recover(
        self,
        complete: Callable[[Recovery], None] = lambda _recovery: None,
        at: At = nowhere,
        *,
        abandoned: Callable[[Origin], None] = lambda _origin: None,
    ) -> Recovery | None:
        """Put in order what dead runs left: scratch trees, and a publication that is half done.

        To be called under the lock. `complete` is called before the ledger forgets the publication,
        and completes the dead run's records. `abandoned` does the same for a run that died before it
        had anything to publish. Raises `Refused` where that needs a person.
        """
        self._remove_scratch_trees(at, abandoned)
        self._remove_strays()
        entry = self.ledger.publication()
        if entry is None:
            return None
        if entry.owner.alive and not entry.owner.is_me:
            raise Refused(f"process {entry.owner.pid} is still at work on this repository: wait for it")
        home = self if entry.git_dir == str(self.git_dir) else self._elsewhere(entry)
        recovery = self._recover(entry, home, at)
        complete(recovery)
        self.settle(at)
        return recovery

    def _remove_scratch_trees(self, at: At, abandoned: Callable[[Origin], None]) -> None:
        publication = self.ledger.publication()
        publishing = None if publication is None else publication.origin
        for key, tree in self.ledger.scratch_trees().items():
            if tree.owner.alive:
                continue
            if os.path.basename(tree.path).startswith(SCRATCH_PREFIX):
                # Commands of the dead run would go on for ever, and write into what is being removed.
                end_those_below(tree.path)
                try:
                    remove_tree(tree.path)
                except OSError:
                    continue  # somebody else's files are in it: the next run may have more luck
            at(Step.SCRATCH_REMOVED)
            if tree.origin is not None and tree.origin != publishing:
                abandoned(tree.origin)
            self.ledger.clear_scratch(key)

    def _remove_strays(self) -> None:
        for path in self.ledger.stray_files():
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink()
        self.ledger.vanish_when_empty()

    def _elsewhere(self, entry: Publication) -> Repository | None:
        """The work tree that the entry is about, when it is another one of this repository."""
        try:
            home = Repository.open(entry.top, self.environment)
        except Refused:
            return None
        if str(home.git_dir) != entry.git_dir or home.common_dir != self.common_dir:
            return None
        home.git = replace(home.git, keep_open=self.git.keep_open)
        return home

    def _recover(self, entry: Publication, home: Repository | None, at: At) -> Recovery:
        move = Move(
            entry.head_ref, entry.head_commit, entry.ref, entry.commit, entry.origin.run_id, entry.folders
        )
        now = self.commit_of(entry.ref)
        finished = now == entry.commit or (now is not None and self._is_ancestor(entry.commit, now))
        if home is not None:
            checkout = home.checkout
            checkout.remove_leftovers(move)
            at(Step.LEFTOVERS_REMOVED)
            if now == entry.commit:
                checkout.finish(move, at)
            elif finished:
                checkout.let_go(move)  # the branch has gone on since, and the checkout with it
            else:
                checkout.undo(move, at)
        return Recovery(
            **vars(entry.origin),
            branch=entry.branch,
            commit=entry.commit if entry.made else None,
            tree=entry.tree,
            finished=finished,
        )

    def _is_ancestor(self, old: str, new: str) -> bool:
        return self.git.ask("merge-base", "--is-ancestor", old, new).exit_code == 0

    # --- pushing -------------------------------------------------------------------------

    def push(
        self, branch: str, remote: str, *, timeout: float, poll: Callable[[], None] | None = None
    ) -> str | None:
        """Push the branch and set its upstream; returns why that failed, or None.

        Never forced, never asks for anything, ends after `timeout` seconds.
        """
        ways = {name: self.environment[name] for name in _PUSH_ENVIRONMENT if name in self.environment}
        if shell := self.environment.get("GIT_SSH_COMMAND"):
            ways["GIT_SSH_COMMAND"] = shell
        git = replace(self.git, poll=poll, keep_open=()).with_env(**ways)
        ref = f"refs/heads/{branch}"
        try:
            git(
                "-c", "push.followTags=false", "-c", "push.gpgSign=false", "-c", "push.recurseSubmodules=no",
                "-c", "credential.interactive=false",
                "push", "--quiet", "--no-force", "--set-upstream", "--", remote, f"{ref}:{ref}",
                timeout=timeout,
            )  # fmt: skip
        except GitError as error:
            return str(error)
        return None


# --- finding the repository --------------------------------------------------------------


def _git_dir_of(top: Path) -> Path | None:
    """The git directory of a top level, read as git reads it; None where there is none."""
    here = top / ".git"
    try:
        if here.is_dir():
            found = here
        else:
            said = path_text(here.read_bytes()[:65536]).rstrip("\r\n")
            if not said.startswith("gitdir: "):
                return None
            found = top / said.removeprefix("gitdir: ")
    except OSError:
        return None
    found = Path(os.path.realpath(found))
    return found if os.path.lexists(found / "HEAD") else None


def _common_dir_of(git_dir: Path) -> Path | None:
    """Where objects, refs and configuration are: for a linked work tree not its own git directory."""
    try:
        said = path_text((git_dir / "commondir").read_bytes()[:65536]).rstrip("\r\n")
        found = Path(os.path.realpath(git_dir / said))
    except OSError:
        found = git_dir
    return found if (found / "objects").is_dir() else None


def _not_a_repository(top: Path, environment: Mapping[str, str]) -> Refused:
    answer = Git.at(top, environment).ask("rev-parse", "--is-bare-repository", "--show-toplevel")
    here = shown(str(top))
    bare, _, elsewhere = answer.text.partition("\n")
    if bare == "true":
        return Refused(f"{here} is a bare repository: llmch needs one with files checked out")
    if answer.exit_code == 0 and elsewhere:
        return Refused(f"{here} lies inside a repository, not at its top: use {shown(elsewhere)}")
    return Refused(f"{here} is not a git repository: `git init` it and commit, or name another")


def _read_status(status: bytes) -> tuple[str | None, str | None, list[str]]:
    """Branch, commit and changed paths; a branch of None is a detached HEAD, a commit of None is none."""
    branch: str | None = None
    commit: str | None = None
    changed = []
    words = iter(status.split(b"\0"))
    for word in words:
        kind, _, rest = word.partition(b" ")
        if word.startswith(b"# branch.oid "):
            oid = path_text(word.split(b" ", 2)[2])
            commit = None if oid == "(initial)" else oid
        elif word.startswith(b"# branch.head "):
            name = path_text(word.split(b" ", 2)[2])
            branch = None if name == "(detached)" else name
        elif kind in (b"?", b"1", b"2", b"u"):
            fields = {b"?": 0, b"1": 7, b"2": 8, b"u": 9}[kind]
            changed.append(path_text(rest.split(b" ", fields)[fields]))
            if kind == b"2":
                next(words, None)  # where it was renamed from
    return branch, commit, changed


def _refuse_in_place(move: Move, problem: str) -> None:
    """Under the user's feet a branch must not move without the files."""
    if move.in_place:
        raise Refused(
            f"branch {shown(move.to_ref.removeprefix('refs/heads/'))} is checked out and was left as it is: "
            f"{problem}; the finished commit is {move.to_commit}: clear the way, then "
            f"`git merge --ff-only {move.to_commit[:12]}`"
        )


def _how_to_follow(branch: str, problem: str | None) -> str | None:
    if problem is None:
        return None
    return (
        f"the commit is on {shown(branch)}, but the checkout stayed as it was: {problem}; "
        f"`git switch {shown(branch)}` brings you there once that is out of the way"
    )


def _goes_away(lock: Path) -> bool:
    """Whether a lock is gone, or is within the moment that a living git needs it."""
    for _ in range(20):
        if not lock.exists():
            return True
        time.sleep(0.05)
    return False


def _in_portions(paths: Iterable[str]) -> Iterator[list[str]]:
    """Paths in lists that fit on a command line."""
    portion: list[str] = []
    size = 0
    for path in paths:
        if portion and size > _MAX_ARGUMENT_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(path)
        size += len(path_bytes(path)) + 1
    if portion:
        yield portion


# --- questions and deeds on any tree -----------------------------------------------------


def is_git_repo(repo: str | Path) -> bool:
    """Whether `repo` is the top level of a work tree."""
    try:
        return Repository.open(repo).git.ask("rev-parse", "--is-inside-work-tree").text == "true"
    except (Refused, GitError):
        return False


def is_clean(repo: str | Path) -> bool:
    """Whether nothing is changed, staged or untracked. Raises `GitError` where git cannot tell."""
    return not Git.at(repo)("status", "--porcelain", "-z").stdout


def has_commits(repo: str | Path) -> bool:
    """Whether HEAD is a commit."""
    return Git.at(repo).ask("rev-parse", "--verify", "-q", "HEAD^{commit}").exit_code == 0


def get_baseline_commit(repo: str | Path) -> str:
    """The commit that HEAD is at. Raises `GitError` when there is none."""
    return Git.at(repo)("rev-parse", "--verify", "HEAD^{commit}").text


def rollback(tree: str | Path, baseline: str) -> None:
    """Bring a tree back to `baseline`: `reset --hard`, then everything git does not have is removed.

    That includes ignored files, nested repositories and what stands in read-only directories; a lock
    that a killed git left on the tree's index does not stand in the way. Raises `GitError`.
    """
    git = Git.at(tree)
    lock = Path(git("rev-parse", "--absolute-git-dir").text) / "index.lock"
    lock.unlink(missing_ok=True)
    roll_back(git, Path(tree), baseline)


def roll_back(git: Git, tree: Path, baseline: str, *, folder_mode: int | None = None) -> None:
    """`rollback` with a git of the caller's, which may have its git directory elsewhere.

    `folder_mode` is given to every directory that is there; without it the owner gets all rights.
    """
    listed_files = git("ls-tree", "-r", "-z", "--name-only", "--full-tree", baseline).stdout
    sweep(tree, {path for path in listed_files.split(b"\0") if path}, folder_mode)
    git("reset", "--hard", "-q", baseline, timeout=CHECKOUT_SECONDS)


def sweep(tree: Path, kept: set[bytes], folder_mode: int | None = None) -> None:
    """Remove everything in a tree but `.git` and the files called `kept`. Raises `OSError`.

    Not left to `git clean`: that passes over FIFOs and sockets, and stops at a closed directory.
    """
    folders = {os.path.dirname(path) for path in kept}
    while above := {os.path.dirname(folder) for folder in folders} - folders:
        folders |= above
    waiting = [b""]
    root = os.fsencode(tree)
    while waiting:
        below = waiting.pop()
        place = os.path.join(root, below)
        if folder_mode is None:
            make_writable(place)
        elif stat.S_IMODE(os.lstat(place).st_mode) != folder_mode:
            os.chmod(place, folder_mode)
        with os.scandir(place) as found:
            entries = list(found)
        for entry in entries:
            path = os.path.join(below, entry.name)
            if path == b".git":
                continue
            if entry.is_dir(follow_symlinks=False):
                if path in folders:
                    waiting.append(path)
                else:
                    remove_tree(os.fsdecode(entry.path))
            elif path not in kept or not (entry.is_symlink() or entry.is_file()):
                os.unlink(entry.path)


def detect_repo_drift(tree: str | Path, touched_files: Iterable[str]) -> list[str]:
    """Files that differ from HEAD or are untracked, but for `touched_files`; sorted.

    Ignored files do not count, and submodules are not looked into.
    """
    return drift(Git.at(tree), touched_files)


def drift(git: Git, touched_files: Iterable[str]) -> list[str]:
    """`detect_repo_drift` with a git of the caller's."""
    status = git(
        "status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=all",
        timeout=CHECKOUT_SECONDS,
    ).stdout  # fmt: skip
    return sorted(set(_read_status(status)[2]) - set(touched_files))


def get_tree_hash(tree: str | Path, touched_files: Iterable[str]) -> str:
    """The tree that HEAD would have with `touched_files` as they are now. The tree's own index stays."""
    git = Git.at(tree)
    index = Path(git("rev-parse", "--absolute-git-dir").text) / f"llmch-index-{os.getpid()}"
    private = git.with_env(GIT_INDEX_FILE=index)
    try:
        private("read-tree", "HEAD")
        return staged_tree(private, Path(tree), touched_files)
    finally:
        index.unlink(missing_ok=True)


def staged_tree(git: Git, tree: Path, touched_files: Iterable[str]) -> str:
    """The tree id after staging files as they are on disk, in an index that is the caller's to change."""
    touched = sorted(set(touched_files))
    folders = [path for path in touched if (tree / path).is_dir() and not (tree / path).is_symlink()]
    files = [path for path in touched if path not in folders]
    for some in _in_portions(folders):  # a directory took the file's place
        git("update-index", "--force-remove", "--", *some)
    git(
        "update-index", "--add", "--remove", "--replace", "-z", "--stdin",
        stdin=b"".join(path_bytes(path) + b"\0" for path in files),
    )  # fmt: skip
    return git("write-tree").text
