"""The notebook on a terminal, in place of a phone's screen.

    python -m examples.edge_app --folder notes --server fl.example.com:8444

A line is a note, `#tag` at its end says what it is about; without a tag the notebook guesses. Learning together
goes on behind the screen, begins with `/join INVITATION`, and ends with `/leave`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from device_sdk import DeviceError
from device_sdk.wire.errors import WireError
from examples.edge_app.notebook import TAGS, Notebook
from examples.edge_app.sharing import Sharing
from privacy import PrivacyError

HELP = "write a note and end it with a tag, e.g. buy milk #home; or /join INVITATION, /status, /leave, /quit"


def main() -> None:
    """Read lines until `/quit` or the end of the input."""
    parser = argparse.ArgumentParser(prog="python -m examples.edge_app", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the notes are")
    parser.add_argument("--server", required=True, help="the federation that may be joined, as host:port")
    options = parser.parse_args()
    notebook = Notebook(options.folder)
    sharing = Sharing(notebook, options.server)
    with sharing.device:
        if sharing.device.status().device is not None:
            sharing.start()
        say(HELP)
        for line in sys.stdin:
            if line.strip() == "/quit":
                break
            say(answer(line.strip(), notebook, sharing))


def answer(line: str, notebook: Notebook, sharing: Sharing) -> str:
    """What the notebook says to a line."""
    word, _, rest = line.partition(" ")
    try:
        match word:
            case "/join":
                sharing.join(rest)
                sharing.start()
                return "joined; your notes stay here"
            case "/status":
                return status(notebook, sharing)
            case "/leave":
                sharing.leave()
                return "left; the keys for this federation are destroyed"
    except (DeviceError, WireError, PrivacyError) as error:
        return f"that did not work: {error}"
    return HELP if word.startswith("/") or not line else noted(line, notebook)


def noted(line: str, notebook: Notebook) -> str:
    """Keep a note that has a tag; guess at the tag of one that has none."""
    text, mark, tag = line.rpartition("#")
    if mark and text.strip() and tag in TAGS:
        notebook.add(text.strip(), tag)
        return f"kept: {len(notebook.notes)} notes"
    guess = notebook.guess(line)
    tags = ", ".join(f"#{tag}" for tag in TAGS)
    return f"say it again with a tag: {tags}" if guess is None else f"perhaps #{guess}? say it again with a tag"


def status(notebook: Notebook, sharing: Sharing) -> str:
    found = sharing.device.status()
    trouble = None if sharing.run is None else sharing.run.error
    lines = [f"{len(notebook.notes)} notes; {found.server}: {found.standing.value}"]
    lines += [] if trouble is None else [f"learning together ended: {trouble}"]
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
