"""Which of the waiting devices train next, one file a rule."""

from server_kit.selection.cluster_weighted import ClusterWeighted
from server_kit.selection.oort import Oort
from server_kit.selection.oort_lite import OortLite
from server_kit.selection.tifl import TiFL
from server_kit.selection.uniform import Uniform

__all__ = ["ClusterWeighted", "Oort", "OortLite", "TiFL", "Uniform"]
