"""A cluster is several processes that plan together: how they meet, talk, and notice that one is
gone."""

from cfp.cluster.link import LinkLost
from cfp.cluster.rendezvous import meet
from cfp.cluster.team import Team, TeamLost, TeamOver

__all__ = ["LinkLost", "Team", "TeamLost", "TeamOver", "meet"]
