"""How a round's updates become the next model, one file a rule."""

from server_kit.aggregation.buffered import FedBuff
from server_kit.aggregation.fedavg import FedAvg
from server_kit.aggregation.fedyogi import FedYogi
from server_kit.aggregation.qfedavg import QFedAvg
from server_kit.aggregation.robust import CoordinateMedian, Guarded, NormBound, TrimmedMean
from server_kit.aggregation.staleness import CasaDecay, FedAsync

__all__ = [
    "CasaDecay",
    "CoordinateMedian",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedYogi",
    "Guarded",
    "NormBound",
    "QFedAvg",
    "TrimmedMean",
]
