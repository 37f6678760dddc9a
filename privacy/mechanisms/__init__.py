"""What may leave a device, one file a mechanism. DP-SGD needs torch and is imported by its own name."""

from privacy.mechanisms.bounded_scalar import BoundedScalar
from privacy.mechanisms.clipped_update import ClippedUpdate
from privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from privacy.mechanisms.feature_histogram import FeatureHistogram
from privacy.mechanisms.label_histogram import LabelHistogram
from privacy.mechanisms.randomized_response import RandomizedResponse
from privacy.mechanisms.voted_choice import VotedChoice

__all__ = [
    "BoundedScalar",
    "ClippedUpdate",
    "DiscreteGaussian",
    "FeatureHistogram",
    "LabelHistogram",
    "RandomizedResponse",
    "VotedChoice",
]
