"""The `server.toml` of a new federation: every setting with its default, and what it means.

A line that begins with `#` and a setting states the default; a test compares all of them with the dataclasses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

_SAMPLE = """\
# Settings of this federation. A line that is commented out states the default.
# `covey server check DIR` finds what would fail; `systemctl reload` or SIGHUP reads this file again.
# There are no secrets here: they are in secrets/, or in the environment as COVEY_...

[federation]
{federation}
# Laid over the preset, table by table: overrides = {{ over_commit = 1.5 }}
# overrides = {{}}

# Devices that train at a time, over all cohorts, and how many must wait before a round is opened
# ("none": as many as take part).
# participants = 20
# begin_with = "none"

# After how many rounds of each cohort the server rests; 0: without end. Later than the deadline is late.
# rounds = 0
# deadline_seconds = 600.0

# Of the initial weights and of every choice the server makes by chance.
# seed = 0

# Where models are aggregated: auto, cpu, cuda or cuda:1.
# device = "auto"

[training]
# What a device does with its data: SGD for so many steps, or with level "device" for so many epochs.
# learning_rate = 0.1
# batch_size = 16
# steps = 10
# epochs = "none"
# momentum = 0.0

[privacy]
# "record": DP-SGD on the device hides each of its records. Devices enrol with --training record.
# "device": the update is clipped and noised as a whole, which hides all that the device holds and needs far more
# devices for the same accuracy. Numbers are taken as written; "1/3" is one too.
{privacy}
# clip_norm = "1"
# sampling_rate = "0.05"
# expected_batch_size = "16"
# relation = "replace"
# grid_bits = {grid_bits}

# Asked for where the preset wants them: one histogram of a device's labels, a choice between models, a score.
# histogram = {{ labels = 10, epsilon = "1" }}
# choice_epsilon = "0.25"
# Told by "votes" of a device's records, which hides any one of them, or by randomised "response", which hides all.
# choice_by = "{choice_by}"
# evaluation_epsilon = "0.25"

[policy]
# What this federation may cost a device in all. A device that has given it is asked for no more. pure_epsilon
# is the part for answers ("none": a quarter).
# epsilon = 8.0
# delta = 1e-6
# pure_epsilon = "none"

[aggregation]
# What keeps a few dishonest devices from carrying a model away. "trimmed_mean": in each coordinate the `trim` largest
# and smallest values are left out; "coordinate_median": all but the middle; "norm_bound": updates are only shortened to
# what an honest device could send; "none". "auto": a trimmed mean where the preset takes a mean of three updates or
# more, else a norm bound. `covey server check` says which it is.
# guard = "auto"
# trim = 0.25
# Updates that are longer than clipping and noise explain are refused. With level "record" that depends on how many
# records a device has: up to so many times those that sampling_rate was made for (expected_batch_size/sampling_rate).
# most_records = 4.0

[listen]
{listen}
# What invitations say, where it differs: behind a balancer or a translated address.
# public_enrolment = "none"
# public_gateway = "none"

[store]
# By default a SQLite file and a folder in this directory. PostgreSQL: postgresql+psycopg://user@host/database,
# its password in secrets/database_password (mode 0600) or in COVEY_DATABASE_PASSWORD.
# url = ""
# blobs = ""
# keep_checkpoints = 3

[guards]
# What one device may take.
# most_upload_bytes = 1073741824
# most_calls_per_device = 6
# most_connections_per_device = 4
# messages_at_once = 500
# messages_a_second = 100.0
# most_summary_bytes = 65536
# most_summaries = 64
# most_summaries_bytes = 1048576
# summaries_a_day = 100.0
# silence_seconds = 120.0

# All devices of one address, of which there may be many; and all there are.
# most_connections_per_address = 4096
# most_connections = 16384

# False claims of affinity cost strikes, and so many strikes so many rounds.
# strikes = 3
# ban_rounds = 50

# How long a device's certificate is good; it renews it by itself.
# certificate_days = 3.0

[enrolment]
# What a stranger may take: the first two for one address (IPv6: for a /64), the next two for all together.
# calls_per_address = 16
# connections_per_address = 64
# most_calls = 256
# most_connections = 1024

# A call that brings no message within so long is ended. So many wrong invitations of an address are told why.
# message_seconds = 10.0
# wrong_invitations_a_minute = 20.0

[supervisor]
# A process of the server that has given no sign of life for so long is killed and started again.
# hung_seconds = 60.0

[evaluation]
# The server's own test data, an .npz file with arrays x and y; without it devices are asked.
# validation = "none"
# every = 1

[log]
# debug, info, warning or error; SIGUSR1 switches to debug and SIGUSR2 back. auto: JSON unless on a terminal.
# level = "info"
# format = "auto"
"""


_LEVELS = {
    "record": ('# level = "record"\n# noise_multiplier = "2"', 8, "votes"),
    "device": ('level = "device"\nnoise_multiplier = "12"', 17, "response"),
}
"""What is protected, noise with which a device has budget for about fifty rounds, and defaults that go with it."""


def sample_settings(
    *,
    name: str = "covey",
    model: str = "server_kit.models:digits_softmax",
    preset: str = "covey",
    hosts: Sequence[str] = (),
    port: int = 8443,
    status_port: int = 8480,
    level: str = "record",
) -> str:
    """The text of a new `server.toml`. With hosts the server listens on all addresses, else on loopback."""
    address = "0.0.0.0" if hosts else "127.0.0.1"  # noqa: S104 - whoever names a host means to be reached
    named = list(hosts) or ["localhost", "127.0.0.1"]
    federation = {"name": name, "model": model, "preset": preset}
    listen: dict[str, str | list[str]] = {
        "enrolment": f"{address}:{port + 1}",
        "gateway": f"{address}:{port}",
        "status": f"127.0.0.1:{status_port}",
        "hosts": named,
    }
    privacy, grid_bits, choice_by = _LEVELS[level]
    return _SAMPLE.format(
        privacy=privacy,
        grid_bits=grid_bits,
        choice_by=choice_by,
        federation=_lines(
            federation,
            {
                "model": "package.module:build; build() gives a torch module or a mapping of names to arrays. "
                "Modules in this folder\n# are found too. Built in: digits_softmax, digits_mlp, mnist_mlp.",
                "preset": "How it is trained: covey, fedavg, fedyogi, auxo, haccs, fedgroup, casa, ...",
            },
        ),
        listen=_lines(
            listen,
            {
                "enrolment": "Newcomers knock at enrolment; enrolled devices talk to gateway.",
                "status": "Health, metrics and dashboard. All but health ask for the token in "
                "secrets/dashboard.token, over\n# plain HTTP: leave it on loopback, or put TLS before it.",
                "hosts": "Names and addresses in the server's certificate; invitations say the first.",
            },
        ),
    )


def _lines(settings: Mapping[str, str | list[str]], comments: Mapping[str, str]) -> str:
    """Settings with the comment that stands above them."""
    lines: list[str] = []
    for setting, value in settings.items():
        if setting in comments:
            lines += ["", f"# {comments[setting]}"] if lines else [f"# {comments[setting]}"]
        # A JSON text, number or list of these is one of TOML too.
        lines.append(f"{setting} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
