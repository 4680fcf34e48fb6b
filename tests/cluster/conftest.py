import pytest

from cfp.cluster import ports


@pytest.fixture
def free_port() -> int:
    return ports.free_port("127.0.0.1")
