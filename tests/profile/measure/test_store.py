"""No measurement is lost: not to a kill, not to a second process, not to a damaged file."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import cfp
from cfp.errors import CfpError
from cfp.profile.measure.lock import held
from cfp.profile.measure.rows import PUT, _digest
from cfp.profile.measure.store import Record, Store, StoreWarning

NAME = "measurements.sqlite"
COUNT = 60
# puts records named by argv[3], saying each key when its put returned; waits once for a line;
# without `import cfp`, which takes JAX's two seconds
WRITER = """
import sys, types
for name, path in (("cfp", sys.argv[1]), ("cfp.profile", sys.argv[1] + "/profile")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from cfp.profile.measure.store import Record, Store
with Store.open(sys.argv[2]) as store:
    print("open", flush=True)
    for n in range(int(sys.argv[4])):
        key = f"{sys.argv[3]}{n}"
        store.put(Record(key, "p", "layer: batch", "4 cpu", {"key": key, "fill": "x" * 1500}, n))
        print(key, flush=True)
        if n == 3:
            sys.stdin.readline()
"""


def record(key: str, **changes: object) -> Record:
    values: dict[str, object] = {
        "key": key,
        "program": "p" + key[-1],
        "name": "layer: batch, output features",
        "environment": "4 cpu, jax 0.10.2",
        "document": {"time_s": 0.125, "of": key, "fill": "x" * 1500},
        "made_at": 1000.0,
    }
    return Record(**{**values, **changes})  # type: ignore[arg-type]


ALL = {f"old{n}": record(f"old{n}") for n in range(COUNT)}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    with Store.open(folder) as store:
        for one in ALL.values():
            store.put(one)
    return folder / NAME


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    """A store of COUNT records to damage."""
    return Path(shutil.copy(filled, tmp_path / NAME))


def writer(
    folder: Path, name: str, count: int, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    root = str(Path(cfp.__file__).parent)
    arguments = [sys.executable, "-c", WRITER, root, str(folder), name, str(count)]
    return subprocess.Popen(
        arguments, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.strip() == text:
            break
    return lines


def held_by(path: Path) -> dict[str, Record]:
    with Store.open(path.parent) as store:
        return {one.key: one for one in store.entries()}


def sound(found: dict[str, Record]) -> bool:
    return all(one == ALL[key] for key, one in found.items() if key in ALL)


def test_gets_what_was_put(tmp_path: Path) -> None:
    first = record("a", document={"inf": float("inf"), "ü": [1, None]}, name="é: \x00 'batch'")
    with Store.open(tmp_path / "new" / "folder") as store:
        assert store.get("a") is None
        store.put(first)
        store.put(record("b"))
        assert store.get("a") == first
        store.put(record("a"))
        assert store.get("a") == record("a")
    with Store.open(tmp_path / "new" / "folder") as store:
        assert store.path == tmp_path / "new" / "folder" / NAME
        assert store.get_many(["b", "none", "a", "b"]) == {"b": record("b"), "a": record("a")}
        assert list(store.get_many(["b", "a"])) == ["b", "a"]
        assert list(store.entries()) == [record("a"), record("b")]
        assert len(store.get_many(f"{n}" for n in range(70_000))) == 0
    assert sorted(one.name for one in store.path.parent.iterdir()) == ["measurements.lock", NAME]


def test_the_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Store.open().path == tmp_path / "xdg" / "cfp" / NAME
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert Store.open().path == tmp_path / ".cache" / "cfp" / NAME
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert Store.open().path == tmp_path / ".cache" / "cfp" / NAME
    assert Store.open("~/mine").path == tmp_path / "mine" / NAME


def test_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    returned: list[str] = []
    for n, delay_s in enumerate((0.0, 0.013, 0.027, 0.041)):
        with writer(tmp_path, f"w{n}-", 100_000) as process:
            returned += read_until(process, f"w{n}-5")[1:]
            time.sleep(delay_s)
            process.send_signal(signal.SIGKILL)
            assert process.stdout is not None
            returned += process.stdout.read().split("\n")[:-1]  # a line cut short is no key
    found = held_by(tmp_path / NAME)
    assert len(returned) >= 24
    assert set(returned) <= set(found)
    assert len(found) - len(returned) <= 4  # each may have been killed before it could say so
    assert all(one.document["key"] == key for key, one in found.items())


def test_writers_at_once_and_damage_in_the_middle(path: Path) -> None:
    writers = [writer(path.parent, f"w{n}-", 20, subprocess.PIPE) for n in range(3)]
    for n, process in enumerate(writers):
        read_until(process, f"w{n}-3")
    os.truncate(path, 5000)
    for process in writers:
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
    for process in writers:
        with process:
            read_until(process, "the end")
        assert process.returncode == 0
    found = held_by(path)
    assert {f"w{n}-{m}" for n in range(3) for m in range(20)} <= set(found)
    assert sound(found)
    assert len(list(path.parent.glob("*.damaged-*"))) == 1


def test_processes_that_find_the_damage_at_once_set_it_aside_once(path: Path) -> None:
    path.write_bytes(b"no database" * 500)
    with held(path.with_suffix(".lock")):
        writers = [writer(path.parent, f"w{n}-", 1) for n in range(3)]
        time.sleep(0.4)  # all wait for their turn to open
    for process in writers:
        with process:
            read_until(process, "the end")
    assert set(held_by(path)) == {"w0-0", "w1-0", "w2-0"}
    assert [one.name for one in path.parent.glob("*.damaged-*")] == [f"{NAME}.damaged-1"]


def test_threads_share_a_store(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        puts = [lambda n=n: store.put(record(f"t{n}")) for n in range(8)]
        threads = [threading.Thread(target=put) for put in puts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(held_by(store.path)) == 8


CUTS = [2, 60, 100, 4095, 4096, 9000, 40_000, 100_000, -1]


@pytest.mark.parametrize("cut", CUTS)
def test_truncated_before_opening(path: Path, cut: int) -> None:
    size = path.stat().st_size
    os.truncate(path, cut % size)
    damaged = path.read_bytes()
    with pytest.warns(StoreWarning, match=r"is damaged .* set aside as .*\.damaged-1; a new one"):
        found = held_by(path)
    assert Path(f"{path}.damaged-1").read_bytes() == damaged
    assert sound(found)
    assert len(found) >= (cut % size) // 4000 - 8  # most of what lies before the cut
    with Store.open(path.parent) as store:
        store.put(record("new"))
    assert held_by(path) == {**found, "new": record("new")}


@pytest.mark.parametrize("call", ["get", "put", "entries", "prune", "close"])
@pytest.mark.parametrize("cut", [60, -1])
def test_truncated_while_open(path: Path, cut: int, call: str) -> None:
    calls: dict[str, Callable[[Store], object]] = {
        "get": lambda store: store.get("mine1"),
        "put": lambda store: store.put(record("mine2")),
        "entries": lambda store: list(store.entries()),
        "prune": lambda store: store.prune(failed=True),
        "close": lambda store: None,
    }
    store = Store.open(path.parent)
    mine = {f"mine{n}": record(f"mine{n}") for n in range(2)}
    for one in mine.values():
        store.put(one)
    os.truncate(path, cut % path.stat().st_size)
    with pytest.warns(StoreWarning, match=r"\.damaged-1; a new one was started with the "), store:
        calls[call](store)
    found = held_by(path)
    assert sound(found)
    assert {key: found.get(key) for key in mine} == mine
    assert ("mine2" in found) == (call == "put")


@pytest.mark.parametrize("seed", range(6))
def test_overwritten_anywhere(path: Path, seed: int) -> None:
    """Whatever the bytes, what is read is what was written."""
    draw = random.Random(seed)
    data = bytearray(path.read_bytes())
    start = draw.randrange(100, len(data) - 1)
    length = draw.choice([1, 8, 512, 20_000])
    data[start : start + length] = draw.randbytes(len(data[start : start + length]))
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        with Store.open(path.parent) as store:
            for one in [*ALL.values(), record("new")]:
                assert store.get(one.key) in (one, None)
            store.put(record("new"))
        found = held_by(path)
    assert sound(found)
    assert found["new"] == record("new")


def test_a_changed_number_is_damage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(b"0.125", b"0.025", 1))
    with Store.open(path.parent) as store:
        with pytest.warns(StoreWarning, match="not as it was written"):
            found = store.get_many(ALL)
        assert len(found) == COUNT - 1
        assert sound(found)


def test_another_process_set_it_aside(path: Path) -> None:
    """This one's records are not in the file that the other started: they are written again."""
    mine = Store.open(path.parent)
    mine.put(record("mine"))
    path.write_bytes(b"x" * 5000)
    with pytest.warns(StoreWarning, match=r"damaged-1; a new one was started with the 0 "):
        other = Store.open(path.parent)
    assert other.get("mine") is None
    mine.put(record("second"))
    mine.close()
    other.close()
    assert set(held_by(path)) == {"mine", "second"}


@pytest.mark.parametrize("how", ["removed", "emptied", "with its folder"])
def test_removed_while_open(path: Path, how: str) -> None:
    store = Store.open(path.parent)
    store.put(record("mine"))
    if how == "removed":
        path.unlink()
    elif how == "emptied":
        os.truncate(path, 0)
    else:
        shutil.rmtree(path.parent)
    with pytest.warns(StoreWarning, match="removed or emptied .* with the 1 measurements of this"):
        store.put(record("second"))
    store.close()
    assert set(held_by(path)) == {"mine", "second"}


def test_garbage_twice(tmp_path: Path) -> None:
    path = tmp_path / NAME
    for n in (1, 2):
        path.write_bytes(b"garbage" * n * 100)
        with pytest.warns(StoreWarning, match=rf"damaged-{n}; "):
            Store.open(tmp_path).close()
        assert Path(f"{path}.damaged-{n}").read_bytes() == b"garbage" * n * 100


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("PRAGMA user_version = -7", "is not a store of measurements and was set aside as"),
        ("PRAGMA user_version = 0", "is not a store of measurements and was set aside as"),
        ("DROP TABLE measurements", "no such table"),
        ("ALTER TABLE measurements DROP COLUMN name", "no such column"),
    ],
)
def test_another_format(path: Path, statement: str, reason: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()
    before = path.read_bytes()
    with pytest.warns(StoreWarning, match=reason):
        assert not held_by(path)
    with Store.open(path.parent) as store:
        store.put(record("new"))
    assert Path(f"{path}.damaged-1").read_bytes() == before
    assert set(held_by(path)) == {"new"}


def test_a_store_of_a_newer_cfp(path: Path) -> None:
    """It is not damaged, and the newer cfp finds it where it was."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    before = path.read_bytes()
    said = r"was made by a newer cfp \(its format is 7, this cfp reads 1\): update cfp, or give"
    with pytest.raises(CfpError, match=said):
        Store.open(path.parent)
    assert path.read_bytes() == before
    assert not [*path.parent.glob("*.damaged-*")]


def test_a_store_that_another_process_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cfp.profile.measure.store.BUSY_S", 0.05)
    with (
        held(path.with_suffix(".lock")),
        pytest.raises(CfpError, match=rf"are held by process {os.getpid()} on .*: end it, or give"),
    ):
        Store.open(path.parent)


FOREIGN: dict[str, tuple[object, ...]] = {
    "no JSON": ("bad", "p", "layer: rows", "4 cpu", "{", 1.0),
    "deep": ("bad", "p", "layer: rows", "4 cpu", "[" * 100_000, 1.0),
    "a list": ("bad", "p", "layer: rows", "4 cpu", "[]", 1.0),
    "a blob": ("bad", "p", b"layer", "4 cpu", "{}", 1.0),
    "long ago": ("bad", "p", "layer: rows", "4 cpu", "{}", -1e300),
    "too late": ("bad", "p", "layer: rows", "4 cpu", "{}", 1e300),
    "a word": ("bad", "p", "layer: rows", "4 cpu", "{}", "soon"),
}


@pytest.mark.parametrize("fields", FOREIGN.values(), ids=FOREIGN)
def test_rows_that_someone_else_wrote(path: Path, fields: tuple[object, ...]) -> None:
    """The digest is right, the content is not: one sentence, and all else is as it was."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(PUT, (*fields, _digest(fields)))
        connection.commit()
    said = r"^1 rows of .*measurements.sqlite are ignored: cfp did not write them\."
    with Store.open(path.parent) as store:
        with pytest.warns(StoreWarning, match=said) as told:
            assert store.get("bad") is None
        assert len(told) == 1  # and not again
        assert {one.key for one in store.entries()} == set(ALL)
        assert store.prune(failed=True) == 0
        assert store.prune(everything=True) == COUNT + 1
        assert [*store.entries()] == []


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "under"):
        with pytest.raises(CfpError, match=r"cannot be read .* with cache_dir / --cache-dir\.$"):
            Store.open(folder)


def test_a_path_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(CfpError, match="unable to open database file"):
        Store.open(tmp_path)


@pytest.mark.skipif(os.getuid() == 0, reason="modes do not bind root")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CfpError, match="Permission denied"):
        Store.open(tmp_path)


def test_a_full_disk(path: Path) -> None:
    store = Store.open(path.parent)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        with pytest.raises(CfpError, match="give another folder with cache_dir"):
            store.put(record("large", document={"fill": "x" * 20_000}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.get("large") is None
    store.put(record("large"))
    store.close()
    assert len(held_by(path)) == COUNT + 1


def test_prune(tmp_path: Path) -> None:
    now = time.time()
    with Store.open(tmp_path) as store:
        for n in range(10):
            failed = None if n % 2 else "out of memory"
            store.put(
                record(
                    f"k{n}",
                    document={"failed": failed, "fill": "x" * 9000},
                    made_at=now - 100 * n - 50,
                )
            )
        size = store.size_bytes
        assert store.prune() == 0
        assert store.prune(older_than_s=800, failed=True) == 1
        assert store.prune(older_than_s=500) == 4
        assert store.prune(failed=True) == 3
        assert {one.key for one in store.entries()} == {"k1", "k3"}
        assert store.size_bytes < size / 2
        assert store.prune(everything=True) == 2
        assert not list(store.entries())
        os.truncate(store.path, 5000)  # what was pruned does not come back
        with pytest.warns(StoreWarning, match="with the 0 measurements"):
            assert store.get("k1") is None


@pytest.mark.parametrize(("left_s", "waits_s"), [(100.0, 30.0), (12.0, 12.0), (-5.0, 1.0)])
def test_a_held_store_is_waited_for_until_the_budget_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_s: float, waits_s: float
) -> None:
    waited: list[float] = []

    @contextmanager
    def waits(path: Path, within_s: float) -> Iterator[None]:
        waited.append(within_s)
        yield

    monkeypatch.setattr("cfp.profile.measure.store.held", waits)
    monkeypatch.setattr("cfp.profile.measure.store.time", SimpleNamespace(monotonic=lambda: 50.0))
    Store.open(tmp_path, 50.0 + left_s)
    assert waited == [waits_s]
