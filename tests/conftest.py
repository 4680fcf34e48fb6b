"""Tests run on 8 virtual CPU devices.

Most of their time is XLA compiling, so it is told not to try hard.
"""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    + " --xla_force_host_platform_device_count=8"
)
# the older emitters of JAX 0.10 compile in half the time, and a program that is not divided into 32
# pieces for as many threads in three quarters of that; to 0.11 the first flag is unknown and fatal
OLD_EMITTERS = metadata.version("jaxlib").startswith("0.10.")
if OLD_EMITTERS:
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"

# there are as many workers as cores: with threads of their own for the products of small matrices
# they waited for one another, and exploring options took twice as long
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# started in the background of a shell, we would inherit that Ctrl-C is ignored, and tests press it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# JAX's tracing makes many small objects that live on, and looking through them all again and again
# took a twelfth of the time of these tests
gc.set_threshold(100_000, 50, 100)

# stores of measurements wait for the disk after every write; a folder in memory does not
IN_MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 2**30  # all tests together leave a few dozen MiB there
if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > ENOUGH_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="Rewrite tests/golden.")


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Planners that run at once measure one after the other. These tests are not about times: who
    runs some of them does not wait for who runs the others."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("locks"))
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): the text people read is what tests/golden/NAME says."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-goldens"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), "run pytest --update-goldens and read the difference"

    return compare
