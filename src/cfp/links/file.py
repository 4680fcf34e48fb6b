"""Links in files: small TOML tables that people read and write.

    format = 1
    [link.h200_nvlink]                # a file may have several links, as one per mesh axis, and
                                      # "x+y" for collectives along both
    scope = "node"                    # or "network"
    device = "NVIDIA H200"            # how the name of the devices begins; left out: any
    source = "..."                    # where the times come from
    error = { median = 0.02, worst = 0.25 }  # left out: unknown
    [link.h200_nvlink.all-reduce.8]   # collective, size of the group
    bytes = [512, 65536, 536870912]
    time_us = [16.0, 18.4, 3760.0]

`shipped` has those that come with CFP. A link is named as there, or by the path of a file:
`mine.toml`, or `mine.toml:x` for the link called x in it.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from cfp.errors import CfpError
from cfp.links.link import COLLECTIVES, REQUIRED, Curve, FitError, Link, Scope
from cfp.links.network import TOGETHER, Network
from cfp.writing import write_whole

FORMAT = 1  # of link files; files of other formats are refused
NEAR = 0.4  # of what two names have in common: `h100` and `h100_nvlink` have half
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # keys that TOML takes without quotes
SUFFIX = ".toml"
MOST_BYTES = 2**20  # of a link file: those of a mesh of ten axes have a tenth of it
Spec = str | Sequence[str] | Mapping[str, "str | Link"]


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    bytes: list[int]
    time_us: list[float]


class _Error(msgspec.Struct, forbid_unknown_fields=True):
    median: float
    worst: float


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal[1]
    link: dict[str, dict[str, Any]]


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    scope: Scope
    source: str
    device: str | None = None
    error: _Error | None = None


def shipped_links() -> tuple[str, ...]:
    """Returns the names of the links that come with CFP."""
    folder = resources.files("cfp.links") / "shipped"
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))


def load_link(name: str) -> Link:
    """Returns a shipped link by its name, or the link of a file by `path` or `path:name`."""
    path, colon, inner = name.rpartition(":")
    if not (colon and path.endswith(SUFFIX)):
        path, inner = name, ""
    found = load_links(path)
    if inner:
        if inner not in found:
            raise CfpError(f"{path} has no link `{inner}`: it has {_listed(found)}.")
        return found[inner]
    if len(found) > 1:
        raise CfpError(
            f"{path} has several links, {_listed(found)}: write {path}:{next(iter(found))} for one."
        )
    return next(iter(found.values()))


def load_links(name: str) -> dict[str, Link]:
    """Returns all links of a file, by their names there; of a shipped one by its name."""
    if name.endswith(SUFFIX) or os.sep in name:
        return read_links(_text(Path(name)), name)
    known = shipped_links()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
        guess = f"; did you mean `{near[0]}`?" if near else "."
        raise CfpError(
            f"There is no link `{name}`{guess} CFP has {', '.join(known)}; a file of your own ends "
            f"in {SUFFIX} (`cfp calibrate` writes one)."
        )
    file = resources.files("cfp.links") / "shipped" / f"{name}{SUFFIX}"
    return read_links(file.read_text(encoding="utf-8"), name)


def find_links(spec: Spec, axes: Mapping[str, int]) -> Network:
    """Returns the network of a mesh: `axes` are its names and sizes, in order.

    `spec` names a link for every axis: "ib_400g,h200_nvlink" or a list in the order of the axes, or
    a mapping by axis. One file with a link for each axis, as `cfp calibrate` writes it, stands for
    all of them.
    """
    wanted = f"the mesh has {len(axes)} axes ({', '.join(axes)})"
    if isinstance(spec, Mapping):
        missing, unknown = [a for a in axes if a not in spec], [a for a in spec if a not in axes]
        if missing or unknown:
            wrong = f"none for {', '.join(missing)}" if missing else f"one for {unknown[0]}"
            raise CfpError(f"`links` has {wrong}, and {wanted}: name a link for each of them.")
        given = [spec[axis] for axis in axes]
        found = [link if isinstance(link, Link) else load_link(link) for link in given]
        return Network(tuple(axes), tuple(axes.values()), tuple(found))
    names = [part.strip() for part in spec.split(",")] if isinstance(spec, str) else list(spec)
    if len(names) == 1 and names[0].endswith(SUFFIX):
        return _of_one_file(names[0], axes)
    if len(names) != len(axes):
        again = ",".join([*names, *[names[-1]] * (len(axes) - len(names))])
        way = f"as {again}" if len(names) < len(axes) else f"{len(axes)} of them"
        raise CfpError(
            f"`links` names {', '.join(names)}, and {wanted}: name one link for each, {way}."
        )
    return Network(tuple(axes), tuple(axes.values()), tuple(load_link(name) for name in names))


def _of_one_file(path: str, axes: Mapping[str, int]) -> Network:
    """Returns the network of a file that has a link for every axis, by name, or else by order; an
    axis of one device needs none, and takes another's."""
    found = load_links(path)
    alone = [name for name in found if TOGETHER not in name]
    moved = [axis for axis, size in axes.items() if size > 1]
    if all(axis in alone for axis in moved):
        names = moved
    elif len(alone) == len(moved):
        names = alone
    else:
        raise CfpError(
            f"{path} has links {_listed(found)}, and the mesh has axes {', '.join(axes)}: name one "
            f"for each, as {','.join([f'{path}:{next(iter(found))}'] * len(axes))}."
        )
    axis_of = dict(zip(names, moved, strict=True))
    link_of = {axis: found[name] for name, axis in axis_of.items()}
    together = {}
    for name, link in found.items():
        parts = name.split(TOGETHER)
        if len(parts) > 1 and all(part in axis_of for part in parts):
            together[frozenset(axis_of[part] for part in parts)] = link
    any_link = next(iter(found.values()))
    links = tuple(link_of.get(axis, any_link) for axis in axes)
    return Network(tuple(axes), tuple(axes.values()), links, together)


def read_links(text: str, where: str) -> dict[str, Link]:
    """Returns the links of a file's text; `where` it is from is named in errors."""
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
        found = {name: _read_link(name, table) for name, table in file.link.items()}
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, ValueError) as error:
        raise CfpError(f"{where} is no link file: {str(error).rstrip('.')}.") from None
    if not found:
        raise CfpError(f"{where} has no links: `cfp calibrate` writes some.")
    return found


def _read_link(name: str, table: Mapping[str, Any]) -> Link:
    kinds = {key: value for key, value in table.items() if key in COLLECTIVES}
    rest = {key: value for key, value in table.items() if key not in COLLECTIVES}
    try:
        head = msgspec.convert(rest, _Head)
    except msgspec.ValidationError as error:
        raise ValueError(f"link `{name}`: {error}") from None
    tables = {
        kind: _read_curves(f"{name}.{kind}", kinds[kind]) for kind in COLLECTIVES if kind in kinds
    }
    missing = [kind for kind in REQUIRED if kind not in tables]
    if missing:
        raise ValueError(f"link `{name}` has no times of {', '.join(missing)}")
    known = head.error
    if known is not None and not 0 <= known.median <= known.worst < math.inf:
        raise ValueError(f"link `{name}`: errors are numbers from 0, and the worst is the larger")
    fit = None if known is None else FitError(known.median, known.worst)
    return Link(name, head.scope, head.device, head.source, fit, tables)


def _read_curves(where: str, groups: Any) -> dict[int, Curve]:
    if not isinstance(groups, dict) or not groups:
        raise ValueError(f"`{where}` has no groups: write [link.{where}.8] for one of 8 devices")
    found = {}
    for group, table in groups.items():
        place = f"{where}.{group}"
        if not (group.isascii() and group.isdecimal() and int(group) > 1):
            raise ValueError(f"`{place}`: a group is a number of devices, at least 2")
        try:
            curve = msgspec.convert(table, _Table)
        except msgspec.ValidationError as error:
            raise ValueError(f"`{place}`: {error}") from None
        _check_rising(place, curve)
        times_s = tuple(1e-6 * time_us for time_us in curve.time_us)
        found[int(group)] = Curve(tuple(curve.bytes), times_s)
    return dict(sorted(found.items()))


def _check_rising(place: str, table: _Table) -> None:
    if not len(table.bytes) == len(table.time_us) >= 2:
        raise ValueError(
            f"`{place}` has {len(table.bytes)} sizes and {len(table.time_us)} times: it needs as "
            "many, and at least two"
        )
    if table.bytes[0] <= 0 or any(a >= b for a, b in pairwise(table.bytes)):
        raise ValueError(f"`{place}`: the bytes must be positive and rise")
    if not all(0 < time_us < math.inf for time_us in table.time_us):
        raise ValueError(f"`{place}`: a time is a number of microseconds above 0")
    if any(a > b for a, b in pairwise(table.time_us)):
        raise ValueError(f"`{place}`: the times must not fall while the bytes rise")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise CfpError(f"{path} is no link file: it has more than {MOST_BYTES} bytes.")
        return data.decode("utf-8")
    except OSError as error:
        raise CfpError(f"Cannot read the links in {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise CfpError(f"{path} is no link file: it is not text.") from None


def write_links(path: str | os.PathLike[str], links: Sequence[Link], comment: str = "") -> None:
    """Writes links into one file."""
    write_whole(path, show_file(links, comment), "link file")


def show_file(links: Sequence[Link], comment: str = "") -> str:
    """Returns the text of a link file; `comment` goes on top."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines.append(f"format = {FORMAT}")
    for link in links:
        name = _key(link.name)
        lines += ["", f"[link.{name}]", f'scope = "{link.scope}"']
        if link.device is not None:
            lines.append(f"device = {_quoted(link.device)}")
        lines.append(f"source = {_quoted(link.source)}")
        if link.error is not None:
            median, worst = link.error.median, link.error.worst
            lines.append(f"error = {{ median = {median:.4f}, worst = {worst:.4f} }}")
        for kind, curves in link.tables.items():
            for group, curve in curves.items():
                times_us = ", ".join(f"{1e6 * time_s:.5g}" for time_s in curve.times_s)
                lines += [
                    "",
                    f"[link.{name}.{kind}.{group}]",
                    f"bytes = [{', '.join(map(str, curve.bytes))}]",
                    f"time_us = [{times_us}]",
                ]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    """Returns a TOML string: JSON's strings are TOML's, too."""
    return msgspec.json.encode(text).decode()


def _listed(found: Mapping[str, Link]) -> str:
    return ", ".join(f"`{name}`" for name in found)
