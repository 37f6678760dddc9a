"""Every metric that the server publishes, with what it means. A process that counts anything else is refused a name.

Counters end in `_total`, durations in `_seconds`. What processes count starts anew with them; what the store knows
does not.
"""

from __future__ import annotations

from types import MappingProxyType

COUNTERS = MappingProxyType(
    {
        "covey_check_ins_total": "Check-ins of devices that were ready for a task.",
        "covey_rounds_total": "Models that a cohort has finished, by cohort.",
        "covey_tasks_total": "Tasks that devices were asked to do.",
        "covey_updates_total": "Uploads that were acknowledged, by kind (update, summary, repeat).",
        "covey_upload_bytes_total": "Bytes of accepted uploads.",
        "covey_download_bytes_total": "Bytes of models sent to devices.",
        "covey_restarts_total": "Processes that the supervisor had to start again, by process.",
    }
)
GAUGES = MappingProxyType(
    {
        "covey_devices_connected": "Devices with an open stream.",
        "covey_cohorts": "Cohorts that train.",
        "covey_devices_waiting": "Connected devices that wait for a task.",
        "covey_certificate_expires_at_seconds": "When the server's certificate ends, as Unix time.",
        "covey_model_accuracy": "Share of right answers of a cohort's newest tested model, by cohort.",
    }
)
HISTOGRAMS = MappingProxyType(
    {
        "covey_round_seconds": "From opening a round to its next model, by cohort.",
        "covey_invite_seconds": "Choosing and asking the devices of a round.",
        "covey_answer_seconds": "From asking a device to the arrival of its update.",
        "covey_fold_seconds": "Making the next model out of the updates, by cohort.",
    }
)
OF_STORE = MappingProxyType(
    {
        "covey_devices_enrolled": "Devices that may take part.",
        "covey_devices_revoked": "Devices that were revoked.",
        "covey_devices_seen_lately": "Devices that were here in the last ten minutes.",
        "covey_refusals_total": "What was refused since the federation began, by reason.",
        "covey_cohorts_by_state": "Cohorts since the federation began, by state.",
        "covey_cohort_round": "The round that a training cohort is in, by cohort.",
        "covey_cohort_version": "The version of a training cohort's newest model, by cohort.",
        "covey_releases_total": "Releases whose receipts are kept.",
        "covey_privacy_epsilon": "ε that devices have spent here at the policy's δ, by rank (median, most).",
        "covey_privacy_policy_epsilon": "ε that the policy promises not to exceed.",
        "covey_privacy_devices_left_out": "Devices with receipts that cannot be read or added up.",
    }
)
OF_PROCESS = MappingProxyType(
    {
        "covey_process_resident_bytes": "Memory that a process holds, by process.",
        "covey_process_started_at_seconds": "When a process was started, as Unix time, by process.",
        "covey_process_silence_seconds": "How long ago a process published anything, by process.",
        "covey_store_up": "1 if the store could be read for this answer.",
    }
)
"""Made by the observer itself."""
EVERY = MappingProxyType({**COUNTERS, **GAUGES, **HISTOGRAMS, **OF_STORE, **OF_PROCESS})
