"""Links say what communication takes on hardware that is not here, and a replay what a step takes.

    link          the time of a collective by kind, size of the group and bytes
    network       a link per axis of a mesh, and collectives along several axes
    file          link files, and the links that come with CFP (`shipped`)
    hlo           the text of a compiled module, read
    collectives   the collectives of a compiled module, and what each moves
    schedule      a compiled module as measured kernels, collectives and waits
    kernels       which modules have the same kernels, so that they are measured once
    replay        the time of a schedule on a network

Nothing here needs devices.
"""

from cfp.links.file import find_links, load_link, load_links, shipped_links, write_links
from cfp.links.link import Curve, FitError, Link
from cfp.links.network import Network

__all__ = [
    "Curve",
    "FitError",
    "Link",
    "Network",
    "find_links",
    "load_link",
    "load_links",
    "shipped_links",
    "write_links",
]
