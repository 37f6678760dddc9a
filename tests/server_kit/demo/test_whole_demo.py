"""A small demo, from start to end: what it prints is so, what it leaves works, and nothing is left running."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from server_kit.demo.data import KINDS
from tests.server_kit.demo.demo_process import DemoProcess

pytestmark = pytest.mark.integration
DEVICES, ROUNDS = 9, 10


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    found = DemoProcess(tmp_path_factory.mktemp("demo"), "--devices", str(DEVICES), "--rounds", str(ROUNDS))
    try:
        assert found.read_to_end() == 0, found.text
        yield found
    finally:
        found.clean_up()


def test_nothing_is_left_running(demo):
    assert demo.is_alone_gone()


def test_it_shows_devices_rounds_and_cohorts_on_the_way(demo):
    assert f"{DEVICES} of {DEVICES} devices connected" in demo.text
    assert f"round {ROUNDS}/{ROUNDS}" in demo.text
    assert "split of cohort 0" in demo.text
    assert re.search(r"0\.\d: \d+% \(\d+%\)", demo.text)


def test_every_kind_stands_in_the_table_with_its_gain(demo):
    numbers = json.loads((demo.out / "results.json").read_text())
    for kind, line in zip(KINDS, numbers["by_kind"], strict=False):
        gain = 100 * (line["cohort_model"] - line["one_model"])
        assert re.search(
            rf"{kind.name} .*{line['cohort_model']:.1%} .*{line['one_model']:.1%} .*\{gain:+.1f}", demo.text
        )
    # So few devices may, now and then, vote the split down; then they are told to be one cohort again.
    assert numbers["agreement"] == pytest.approx(1.0) or "merge of cohort 0" in demo.text
    assert 0 < numbers["epsilon"]["spent"] <= 8


def test_lines_fit_80_columns_where_paths_do(demo):
    here = str(demo.out)
    assert [line for line in demo.text.splitlines() if len(line) > 80 and here not in line] == []


def test_the_three_commands_work_as_printed(demo):
    commands = demo.text.split("Try next:\n")[1].strip().splitlines()
    assert len(commands) == 3
    assert "privacy report" in commands[0]
    for command in commands:
        ended = subprocess.run(command.strip(), shell=True, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    assert (demo.out / "privacy.html").is_file()


class References(HTMLParser):
    """What a page would load."""

    def __init__(self, page):
        super().__init__()
        self.found, self.drawings = [], 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.drawings += tag == "svg"
        self.found += [value for name, value in attributes if name in {"src", "href"} and not value.startswith("#")]
        self.found += [tag] if tag in {"script", "link", "img"} else []


def test_the_report_holds_its_plots_and_loads_nothing(demo):
    page = (demo.out / "report.html").read_text(encoding="utf-8")
    references = References(page)
    assert references.found == []
    assert references.drawings == 3
    assert all(kind.name in page for kind in KINDS)


def test_the_reference_check_catches_a_page_that_loads_something():
    assert References("<img src='https://example.com/a.png'><script></script>").found


def test_test_images_never_reach_a_device(demo):
    import numpy as np

    for file in (demo.out / "records").iterdir():
        with np.load(file) as arrays:
            assert set(arrays) == {"images", "labels"}
            assert len(arrays["labels"]) == 300


def test_a_second_demo_may_replace_the_first_and_nothing_else(demo, tmp_path):
    from server_kit.demo.requirements import prepare

    folder = tmp_path / "again"
    shutil.copytree(demo.out, folder)
    prepare(folder)
    assert not (folder / "report.html").exists()
