"""The notes file: reading it, changing it, writing it back."""

import json
import os
import tempfile
from datetime import date


class StoreError(Exception):
    """The notes file cannot be used; the text says why in one line."""


class Store:
    """The notes of one file, in the order they were added."""

    def __init__(self, path):
        self.path = path
        self.notes = self._load()

    def _load(self):
        try:
            with open(self.path, encoding="utf-8") as file:
                notes = json.load(file)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise StoreError(f"cannot read {self.path}: {error}") from None
        if not isinstance(notes, list):
            raise StoreError(f"cannot read {self.path}: it holds no list of notes")
        return notes

    def add(self, text, day=None):
        """Append a note and return it. Ids count up from 1 and are never used again."""
        note = {
            "id": max((n["id"] for n in self.notes), default=0) + 1,
            "date": day or date.today().isoformat(),
            "text": text,
        }
        self.notes.append(note)
        return note

    def find(self, note_id):
        """The note with this id. Raises StoreError when there is none."""
        for note in self.notes:
            if note["id"] == note_id:
                return note
        raise StoreError(f"no note {note_id}")

    def delete(self, note_id):
        """Remove a note and return it."""
        note = self.find(note_id)
        self.notes.remove(note)
        return note

    def save(self):
        """Write the file whole or not at all."""
        directory = os.path.dirname(os.path.abspath(self.path))
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=".notes-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self.notes, file, indent=2, ensure_ascii=False)
                file.write("\n")
            os.replace(temporary, self.path)
        except OSError as error:
            os.unlink(temporary)
            raise StoreError(f"cannot write {self.path}: {error}") from None
