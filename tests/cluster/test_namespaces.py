"""Test clusters: names, speeds, and nothing left behind. Only where namespaces can be made."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.cluster.network import check_privileges, made
from bench.cluster.spec import SPECS, SpecError, read_spec


@pytest.fixture
def privileged() -> None:
    try:
        check_privileges()
    except SpecError as error:
        pytest.skip(str(error))


def run(spec: str, *command: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.cluster", "run", "--spec", spec, "--", *command],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def left_behind() -> list[str]:
    """Hosts of runs that are no more; other tests may have some of their own."""
    pids = re.findall(r"^cfp-(\d+)-", namespaces(), re.MULTILINE)
    return [pid for pid in pids if not Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.toml")), ids=lambda path: path.stem)
def test_specs_are_read(path: Path) -> None:
    spec = read_spec(path.name)
    assert spec.processes >= 2
    assert spec.description


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts = 3", "hosts"),
        ('[[hosts]]\nname = "a"\nprocesses = 0', "one or two"),
        ('link = "fast"\n[[hosts]]\nname = "a"', "write 200mbit"),
        ('speed = "1gbit"\n[[hosts]]\nname = "a"', "`speed` is not part"),
        ("= 3", "not TOML"),
    ],
)
def test_bad_specs_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(SpecError, match=said):
        read_spec(str(file))


@pytest.mark.usefixtures("privileged")
def test_hosts_have_names_and_reach_each_other() -> None:
    with made(read_spec("two_hosts_200mbit")) as (a, b):
        said = [
            subprocess.run(p.command(["hostname"]), capture_output=True, text=True).stdout.strip()
            for p in (a, b)
        ]
        assert said == ["boxa", "boxb"]
        look = b.command(["getent", "hosts", "boxa"])
        found = subprocess.run(look, capture_output=True, text=True).stdout.split()
        assert found == [a.address, "boxa"]
        shaped = ["ip", "netns", "exec", a.namespace, "tc", "qdisc", "show", "dev", "eth0"]
        assert "rate 200Mbit" in subprocess.run(shaped, capture_output=True, text=True).stdout
    assert a.namespace not in namespaces()


@pytest.mark.usefixtures("privileged")
def test_nothing_is_left_of_a_run_that_fails() -> None:
    ran = run("two_hosts_200mbit", sys.executable, "-c", "import sys; sys.exit(7)")
    assert ran.returncode == 7
    assert left_behind() == []


@pytest.mark.usefixtures("privileged")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_does_not_go_on_with_the_next(number: signal.Signals) -> None:
    script = (
        "from bench.cluster.run import run; from bench.cluster.spec import read_spec;"
        "command = ['sh', '-c', 'echo started; exec sleep 60'];"
        "[run(read_spec('two_hosts_200mbit'), command) for _ in range(2)]"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as going:
        assert going.stdout is not None
        assert going.stdout.readline() == "started\n"
        os.killpg(going.pid, number)
        assert going.wait(30) == 128 + number
        assert going.stdout.read() == ""
    assert left_behind() == []


@pytest.mark.usefixtures("privileged")
def test_a_host_that_vanishes_in_the_midst_of_a_message() -> None:
    """Who waits for the rest of it learns so by its own beats, which nobody acknowledges."""
    ran = run("two_hosts_200mbit", sys.executable, "-m", "tests.cluster.vanishing", timeout_s=60)
    noticed = re.search(r"its connection broke \(.*\) after ([\d.]+) s", ran.stdout)
    assert noticed, ran
    assert float(noticed[1]) < 10


@pytest.mark.usefixtures("privileged")
def test_a_slow_clusters_measurements_are_not_a_fast_ones(tmp_path: Path) -> None:
    """One store, two clusters that differ in nothing but their network: in the key of every
    measurement it has another name (`test_network.test_levels_are_in_the_key`)."""
    command = [sys.executable, "-m", "tests.cluster.network", str(tmp_path)]

    def names(spec: str, times: int) -> list[str]:
        ran = run(spec, *command, str(times))
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.split()

    slow, (fast,) = names("slow_200mbit", 3), names("unshaped", 1)
    # it is known again, though what else the machine does may make it look like another one, once
    assert len({*slow}) < len(slow) == 3
    assert fast not in slow
