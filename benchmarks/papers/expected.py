"""What the papers print, and which of their claims we test on the same seeds."""

from __future__ import annotations

from dataclasses import dataclass

PUBLISHED = {
    "fedgroup_mnist": {
        "fedavg": "89.3",
        "fedprox": "90.5",
        "random centres (RCC)": "93.5",
        "random groups (RAC)": "88.1",
        "fedgroup": "95.7",
        "fedgrouprox": "95.8",
    },
    "fedgroup_mnist_mlp": {
        "fedavg": "94.4",
        "fedprox": "93.4",
        "random centres (RCC)": "95.7",
        "random groups (RAC)": "92.9",
        "fedgroup": "97.6",
        "fedgrouprox": "97.1",
    },
    "fedgroup_synthetic": {
        "fedavg": "72.6",
        "fedprox": "80.4",
        "random centres (RCC)": "92.3",
        "fedgroup": "92.1",
        "fedgrouprox": "84.6",
    },
    "casa_dirichlet": {
        "standalone": "98.3, 4.9",
        "fedavg": "97.9, 80",
        "fedprox": "97.3, 105",
        "cfl": "99.4, 31",
        "ifca": "99.5, 13",
        "fedasync": "97.5, 110",
        "fedbuff": "99.3, 53",
        "cfl_async": "99.2, 9.5",
        "ifca_async": "99.3, 8.6",
        "casa": "99.5, 2.8",
        "casa_plus": "99.3, 4.8",
    },
}
"""Accuracy in %, for CASA with the time to its target in the authors' unit. FedGroup's is the best over rounds."""


@dataclass(frozen=True)
class Claim:
    """`better` is ahead of `other`: in final accuracy, or with a target in the time to it."""

    better: str
    other: str
    target: float | None = None


CLAIMS = {
    "fedgroup_mnist": [
        Claim("fedgroup", "fedavg"),
        Claim("fedgroup", "fedprox"),
        Claim("fedgroup", "random groups (RAC)"),
        Claim("covey", "fedgroup"),
    ],
    "fedgroup_mnist_mlp": [Claim("fedgroup", "fedavg"), Claim("fedgroup", "fedprox"), Claim("covey", "fedgroup")],
    "fedgroup_synthetic": [Claim("fedgroup", "fedavg"), Claim("fedgroup", "fedprox"), Claim("covey", "fedgroup")],
    "haccs_time": [
        *(Claim("haccs P(y)", other, 0.8) for other in ("random", "tifl", "oort", "oort_lite")),
        Claim("haccs P(y)", "random"),
        Claim("covey", "haccs P(y)", 0.8),
        Claim("covey", "oort_lite", 0.8),
        Claim("covey", "haccs P(y)"),
    ],
    "haccs_time_all_seeing": [
        *(Claim("haccs P(y)", other, 0.8) for other in ("random", "tifl", "oort", "oort_lite")),
        Claim("covey", "haccs P(y)", 0.8),
        Claim("covey", "haccs P(y)"),
    ],
    "haccs_dropout": [Claim("haccs P(X|y)", "random", 0.8), Claim("haccs P(X|y)", "tifl", 0.8)],
    "auxo_rotations": [
        Claim("fedyogi + auxo", "fedyogi"),
        Claim("fedprox + auxo", "fedprox"),
        Claim("qfedavg + auxo", "qfedavg"),
        Claim("ftfa + auxo", "ftfa"),
        *(Claim("fedyogi + auxo", other) for other in ("cfl", "flhc", "flexcfl", "ifca")),
        Claim("covey", "fedyogi + auxo"),
    ],
    "casa_rotations": [
        *(Claim("casa", other) for other in ("fedavg", "fedbuff", "cfl_async", "ifca_async")),
        Claim("covey", "casa"),
        Claim("covey, buffered", "casa"),
        Claim("covey, buffered", "casa", 0.8),
    ],
    "casa_dirichlet": [
        *(Claim("casa", other) for other in ("standalone", "fedavg", "cfl_async")),
        Claim("covey", "casa"),
        Claim("covey, buffered", "casa"),
    ],
    "equal_epsilon_record_labels": [
        Claim("covey", other) for other in ("fedyogi", "haccs", "auxo", "fedgroup", "casa")
    ],
    "equal_epsilon_record_rotations": [Claim("covey", other) for other in ("fedyogi", "auxo", "fedgroup", "casa")],
    "equal_epsilon_device": [Claim("covey", other) for other in ("fedavg", "auxo", "fedgroup")],
}
"""By experiment; names are those of its contenders."""

SIDE_BY_SIDE = {
    "auxo_sweeps": (
        "auxo_ldp_8",
        "auxo_ldp_4",
        "auxo_ldp_2",
        "auxo_label_flip_05",
        "auxo_label_flip_15",
        "auxo_affinity_loss_20",
    ),
    "haccs_sweeps": ("haccs_time", "haccs_dropout", "haccs_skew_five_labels", "haccs_skew_none"),
    "people": ("people_writers", "people_activity", "people_speakers"),
    "equal_epsilon": (
        "equal_epsilon_none_labels",
        "equal_epsilon_record_labels",
        "equal_epsilon_none_rotations",
        "equal_epsilon_record_rotations",
    ),
}
"""Experiments with the same contenders, in one table."""
