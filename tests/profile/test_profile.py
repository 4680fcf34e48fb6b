"""A profile that is sent to another process is the same there."""

from dataclasses import fields

import pytest

from cfp.cluster.wire import WireError
from cfp.profile.profile import pack_profile, unpack_profile
from tests.planning.invented import invented_profile
from tests.profile.cases import model


def test_there_and_back() -> None:
    analysis = model("gpt")
    sent = invented_profile(analysis)
    data = pack_profile(sent)
    there = unpack_profile(data, analysis)
    for field in fields(sent):
        if field.name != "segments":
            assert getattr(there, field.name) == getattr(sent, field.name)
    for ours, theirs in zip(sent.segments, there.segments, strict=True):
        assert theirs.kind.index == ours.kind.index
        for field in fields(ours):
            if field.name != "kind":  # made anew there: its programs are compared by what they are
                assert getattr(theirs, field.name) == getattr(ours, field.name)
    with pytest.raises(WireError, match="no `PackedProfile`"):
        unpack_profile(data[:-1], analysis)
