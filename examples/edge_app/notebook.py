"""The notebook: notes in a file, and a guess at the tag of a new one. It knows nothing of Covey."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

TAGS = ("home", "work", "health", "travel")
WORDS = 256
"""How many places words are hashed to; all notebooks of a federation must agree."""


@dataclass(frozen=True)
class Note:
    """A few words of a person, and what they are about."""

    text: str
    tag: str


class Notebook:
    """The notes in one folder, and the model that was last learned there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._notes_file, self._model_file = folder / "notes.jsonl", folder / "model.safetensors"
        lines = self._notes_file.read_text(encoding="utf-8").splitlines() if self._notes_file.exists() else []
        self.notes = [Note(**json.loads(line)) for line in lines]
        self._model: Mapping[str, NDArray[Any]] | None = None
        if self._model_file.exists():
            self._model = load_file(self._model_file)

    def add(self, text: str, tag: str) -> None:
        with self._notes_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(Note(text, tag))) + "\n")
        self.notes.append(Note(text, tag))

    def examples(self) -> tuple[NDArray[np.float32], list[int]]:
        """Every note as a row of numbers, and the number of its tag."""
        notes = list(self.notes)
        return rows([note.text for note in notes]), [TAGS.index(note.tag) for note in notes]

    def keep_model(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Guess with these weights from now on."""
        half_written = self._model_file.with_suffix(".new")
        save_file(dict(weights), half_written)
        half_written.replace(self._model_file)
        self._model = weights

    def guess(self, text: str) -> str | None:
        """The tag that the model would give; none as long as there is no model."""
        model = self._model
        if model is None:
            return None
        scores = rows([text]) @ model["dense1.weight"].T + model["dense1.bias"]
        return TAGS[int(scores.argmax())]


def new_model() -> dict[str, NDArray[np.float32]]:
    """Softmax regression that knows nothing yet: what a server begins with."""
    return {
        "dense1.weight": np.zeros((len(TAGS), WORDS), np.float32),
        "dense1.bias": np.zeros(len(TAGS), np.float32),
    }


def rows(texts: Sequence[str]) -> NDArray[np.float32]:
    """One row a text: which words are in it."""
    table = np.zeros((len(texts), WORDS), np.float32)
    for row, text in zip(table, texts, strict=True):
        row[[zlib.crc32(word.encode()) % WORDS for word in re.findall(r"\w+", text.lower())]] = 1
    return table


def on_mains(supplies: Path = Path("/sys/class/power_supply")) -> bool:
    """Whether this machine has power to spare; one that names no supplies is on mains."""
    online = [path.read_text(encoding="ascii").strip() for path in supplies.glob("*/online")]
    return "1" in online or not online
