"""A cluster is several processes that plan together: how they meet, talk, and notice that one is
gone."""

from cfp.cluster.connection import ConnectionLost
from cfp.cluster.rendezvous import meet
from cfp.cluster.team import Team, TeamLost, TeamOver

__all__ = ["ConnectionLost", "Team", "TeamLost", "TeamOver", "meet"]
