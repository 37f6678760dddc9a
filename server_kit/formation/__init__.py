"""How cohorts come about, one file a way."""

from server_kit.formation.bipartition import Bipartition
from server_kit.formation.discovery import Discovery
from server_kit.formation.founding import Founding
from server_kit.formation.gated import Gated
from server_kit.formation.never import Never
from server_kit.formation.online import Online
from server_kit.formation.several_models import SeveralModels
from server_kit.formation.spectral import Spectral
from server_kit.formation.split_rules import Evidence, FixedRounds, PaperRatio

__all__ = [
    "Bipartition",
    "Discovery",
    "Evidence",
    "FixedRounds",
    "Founding",
    "Gated",
    "Never",
    "Online",
    "PaperRatio",
    "SeveralModels",
    "Spectral",
]
