"""Alpa's options, under its names where the house has no word of its own (`axis`: mesh dim).

here                        in Alpa (AutoShardingOption, LogicalDeviceMesh)
alpha, beta                 mesh_alpha, mesh_beta; None: 1 along every axis
force_batch_axis            force_batch_dim_to_mesh_dim; None: the first axis of a mesh with
                            two or more axes longer than 1, else nothing is forced
free_batch                  force_batch_dim_to_mesh_dim = -1: nothing is forced
the rest                    the same names and the same defaults
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AlpaOptions:
    """What the solver may do. The defaults are Alpa's."""

    alpha: tuple[float, ...] | None = None
    beta: tuple[float, ...] | None = None
    allow_all_gather: bool = True
    allow_all_to_all: bool = True
    allow_replicated_parameters: bool = True
    allow_recompute_heavy_op: bool = False
    allow_mixed_mesh_shape: bool = False
    force_data_parallel: bool = False
    force_batch_axis: int | None = None
    free_batch: bool = False
    prefer_reduce_scatter: bool = False
