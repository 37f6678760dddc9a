"""What would fail, found before it does: each check looks at one thing and says what it found in one sentence.

Nobody is asked outside this machine, except the database and the blobs that the settings name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from privacy.errors import PrivacyError
from server_kit.errors import ServerError

if TYPE_CHECKING:
    from server_kit.daemon.federation_home import Home


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    check: str
    verdict: Verdict
    sentence: str


Found = Iterator[tuple[Verdict, str]]
Check = Callable[["Home"], Found]


def check_home(home: Home, checks: Sequence[tuple[str, Check]]) -> list[Finding]:
    """Run the checks; one that cannot be made is a finding too."""
    findings = []
    for name, check in checks:
        try:
            findings += [Finding(name, verdict, sentence) for verdict, sentence in check(home)]
        except (ServerError, PrivacyError, ImportError) as error:
            findings.append(Finding(name, Verdict.FAIL, str(error)))
        except OSError as error:
            findings.append(Finding(name, Verdict.FAIL, f"could not be checked ({error.strerror or error})"))
    return findings
