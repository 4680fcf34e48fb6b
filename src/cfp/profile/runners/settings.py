"""JAX's settings and the environment, as far as a measurement depends on them.

The rule is one of exclusion: whatever is not known to be harmless counts. So a setting that a later
JAX adds, or that nobody here has thought of, is in the key of every measurement, and measurements
made under one value are never served under another. What is known to be harmless is listed below
with the reason, and so are the few settings that a worker must not have at all.

    settings of JAX    all that are not in `LOCAL` go to the worker; those of them that are not in
                       `HARMLESS` are in the key
    environment        the variables that `ENVIRONMENT` matches are in the key, but for `IGNORED`;
                       a worker inherits all of them, and none of JAX's own
    flags of XLA       are in the key, in any order, but for those that `SILENT` matches
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

_CACHE = "a cache gives what compiling gives"
_DEVICES = "the platform and the kind of the devices are in the key themselves"
_WAITING = "how long processes wait for each other to start"

# settings that the worker has, and that change no program and no time
HARMLESS: Mapping[str, str] = {
    "jax_backend_target": _DEVICES,
    "jax_compilation_cache_check_contents": _CACHE,
    "jax_compilation_cache_dir": _CACHE,
    "jax_compilation_cache_include_metadata_in_key": _CACHE,
    "jax_compilation_cache_max_size": _CACHE,
    "jax_cpu_get_global_topology_timeout_minutes": _WAITING,
    "jax_cpu_get_local_topology_timeout_minutes": _WAITING,
    "jax_cuda_visible_devices": _DEVICES,
    "jax_enable_compilation_cache": _CACHE,
    "jax_oneapi_visible_devices": _DEVICES,
    "jax_persistent_cache_enable_xla_caches": _CACHE,
    "jax_persistent_cache_min_compile_time_secs": _CACHE,
    "jax_persistent_cache_min_entry_size_bytes": _CACHE,
    "jax_platform_name": _DEVICES,
    "jax_platforms": _DEVICES,
    "jax_raise_persistent_cache_errors": _CACHE,
    "jax_remove_custom_partitioning_ptr_from_cache_key": _CACHE,
    "jax_rocm_visible_devices": _DEVICES,
    "jax_xla_backend": _DEVICES,
}

_ADDRESS = "an address at which one process alone can listen"
_CHECK = "a check while tracing or after running; nobody would see what the worker finds"
_COUNT = "the mesh says which devices there are"
_EXPORT = "how a program travels to the worker, not what it is"
_SAID = "what is logged, dumped or said in an error"
_SHARED = "which process compiles; workers compile in any order, and must not wait for each other"
_TRACED = "it acts while the step is traced: what it changes is in the program's text"

# settings of this process alone, which the worker does not have
LOCAL: Mapping[str, str] = {
    "jax_array_garbage_collection_guard": _CHECK,
    "jax_captured_constants_report_frames": _SAID,
    "jax_captured_constants_warn_bytes": _SAID,
    "jax_check_tracer_leaks": _CHECK,
    "jax_compiler_detailed_logging_min_ops": _SAID,
    "jax_cross_host_transfer_socket_address": _ADDRESS,
    "jax_cross_host_transport_addresses": _ADDRESS,
    "jax_debug_infs": _CHECK,
    "jax_debug_key_reuse": _CHECK,
    "jax_debug_leaked_clients_on_clear_backends": _CHECK,
    "jax_debug_log_modules": _SAID,
    "jax_debug_nans": _CHECK,
    "jax_default_device": _COUNT,
    "jax_disable_bwd_checks": _CHECK,
    "jax_disable_jit": _TRACED,
    "jax_disable_vmap_shmap_error": _CHECK,
    "jax_disallow_mesh_context_manager": _CHECK,
    "jax_distributed_debug": _SAID,
    "jax_dump_ir_modes": _SAID,
    "jax_dump_ir_to": _SAID,
    "jax_enable_checks": _CHECK,
    "jax_explain_cache_misses": _SAID,
    "jax_explicit_x64_dtypes": _TRACED,
    "jax_export_calling_convention_version": _EXPORT,
    "jax_export_ignore_forward_compatibility": _EXPORT,
    "jax_hlo_source_file_canonicalization_regex": _SAID,
    "jax_include_debug_info_in_dumps": _SAID,
    "jax_include_full_tracebacks_in_locations": _SAID,
    "jax_legacy_prng_key": _TRACED,
    "jax_log_checkpoint_residuals": _SAID,
    "jax_log_compiles": _SAID,
    "jax_logging_level": _SAID,
    "jax_mutable_array_checks": _CHECK,
    "jax_no_execution": _CHECK,
    "jax_no_tracing": _CHECK,
    "jax_num_cpu_devices": _COUNT,
    "jax_numpy_dtype_promotion": _TRACED,
    "jax_numpy_rank_promotion": _TRACED,
    "jax_pallas_verbose_errors": _SAID,
    "jax_pprint_use_color": _SAID,
    "jax_send_traceback_to_runtime": _SAID,
    "jax_serialization_version": _EXPORT,
    "jax_share_binary_between_hosts": _SHARED,
    "jax_share_binary_between_hosts_timeout_ms": _SHARED,
    "jax_source_url_schema": _SAID,
    "jax_thread_guard": _CHECK,
    "jax_traceback_filtering": _SAID,
    "jax_traceback_in_locations_limit": _SAID,
    "jax_tracer_error_num_traceback_frames": _SAID,
    "jax_transfer_guard": _CHECK,
    "jax_transfer_guard_device_to_device": _CHECK,
    "jax_transfer_guard_device_to_host": _CHECK,
    "jax_transfer_guard_host_to_device": _CHECK,
}

# variables that libraries under JAX read: collectives, kernels, allocators, threads
ENVIRONMENT = re.compile(
    r"(NCCL|RCCL|NVSHMEM|UCX|CUBLAS|CUDNN|NVTE|MIOPEN|ROCBLAS|HIPBLASLT|HSA"
    r"|XLA|MALLOC|TCMALLOC|OMP|KMP|MKL|ONEDNN|DNNL)_\w+"
    r"|CUDA_(DEVICE_MAX_CONNECTIONS|DEVICE_ORDER|FORCE_PTX_JIT|LAUNCH_BLOCKING|MODULE_LOADING"
    r"|SCALE_LAUNCH_QUEUES|DISABLE_\w+)"
    r"|NVIDIA_TF32_OVERRIDE|TF_(CUDNN|CUBLAS|GPU|XLA|FORCE|ENABLE|DISABLE|USE|NUM)_\w+"
    r"|GPU_MAX_HW_QUEUES|LD_PRELOAD|NPROC"
)
IGNORED: Mapping[str, str] = {
    "CUDNN_HOME": "where the library lies",
    "CUDNN_LOGDEST_DBG": _SAID,
    "CUDNN_LOGERR_DBG": _SAID,
    "CUDNN_LOGINFO_DBG": _SAID,
    "CUDNN_LOGWARN_DBG": _SAID,
    "CUDNN_PATH": "where the library lies",
    "CUDNN_VERSION": "a label of container images; jaxlib has its own library",
    "NCCL_DEBUG": _SAID,
    "NCCL_DEBUG_FILE": _SAID,
    "NCCL_DEBUG_SUBSYS": _SAID,
    "NCCL_VERSION": "a label of container images; jaxlib has its own library",
    "XLA_FLAGS": "flags are read one by one",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "the worker has its own",
}

FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# flags that write files and logs, or say how many virtual devices there are: the mesh says that
SILENT = re.compile(
    r"--(xla_force_host_platform_device_count|xla(_gpu|_cpu|_tpu)?_dump_\w+|xla_hlo_graph_\w+"
    r"|xla_detailed_logging|xla_log\w*|\w+_log_dir|v|vmodule|logtostderr|alsologtostderr"
    r"|minloglevel|stderrthreshold|log_dir)"
)


def worker_settings() -> dict[str, Any]:
    """Returns the settings that a worker shall have: plain values, this thread's where it has its
    own."""
    return {
        name: value
        for name, value in _values().items()
        if name not in LOCAL and isinstance(value, (bool, int, float, str, type(None)))
    }


def key_settings() -> tuple[tuple[str, str], ...]:
    """Returns the settings that change a program or its speed, sorted by name."""
    return tuple(
        (name, str(value))
        for name, value in sorted(_values().items())
        if name not in LOCAL and name not in HARMLESS
    )


def key_environment(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns the variables that change a program or its speed, sorted by name."""
    return tuple(
        (name, value)
        for name, value in sorted(environment.items())
        if ENVIRONMENT.fullmatch(name) and name not in IGNORED and value
    )


def key_flags(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the flags that change a program or its speed, sorted; the last of a name counts."""
    found: list[str] = []
    for variable in FLAGS:
        last = {word.partition("=")[0]: word for word in _words(environment.get(variable, ""))}
        found += sorted(word for name, word in last.items() if not SILENT.fullmatch(name))
    return tuple(found)


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without JAX's own settings: the worker is told those."""
    of_jax = {name.upper() for name in jax.config.values}
    return {name: value for name, value in environment.items() if name not in of_jax}


def _values() -> Mapping[str, Any]:
    values: Mapping[str, Any] = jax.config.values
    return values


def _words(text: str) -> Iterable[str]:
    """Yields the flags in a variable, or in the file that it names, as XLA reads them."""
    text = text.strip()
    if text and not text.startswith("-"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError):  # XLA says so when it starts
            return [text]
    return text.split()
