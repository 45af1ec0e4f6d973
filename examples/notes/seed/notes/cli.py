"""The command line: one function per command."""

import argparse
import sys

from notes.store import Store, StoreError


def main(argv=None):
    """Run a command and return its exit code."""
    options = parser().parse_args(argv)
    try:
        return options.run(options, Store(options.file))
    except StoreError as error:
        print(f"notes: {error}", file=sys.stderr)
        return 1


def parser():
    """The command line's parser. Each command sets `run`."""
    top = argparse.ArgumentParser(prog="notes", description="Dated notes in one JSON file.")
    top.add_argument("--file", default="notes.json", help="the notes file (notes.json)")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    add = commands.add_parser("add", help="add a note")
    add.add_argument("text", nargs="+")
    add.set_defaults(run=run_add)

    list_ = commands.add_parser("list", help="list the notes, oldest first")
    list_.set_defaults(run=run_list)

    delete = commands.add_parser("delete", help="delete a note")
    delete.add_argument("id", type=int)
    delete.set_defaults(run=run_delete)
    return top


def line_of(note):
    """A note as one line of output."""
    return f"{note['id']:>4}  {note['date']}  {note['text']}"


def run_add(options, store):
    note = store.add(" ".join(options.text))
    store.save()
    print(line_of(note))
    return 0


def run_list(options, store):
    for note in store.notes:
        print(line_of(note))
    return 0


def run_delete(options, store):
    note = store.delete(options.id)
    store.save()
    print(f"deleted {note['id']}")
    return 0
