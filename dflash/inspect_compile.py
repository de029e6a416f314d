"""``dflash preflight``: the compile state of a fresh process, then of one that has imported what training imports.

In: a configuration, or none. Out: a ``Preflight`` for each moment; on a CUDA machine a last one that compiles flex
attention on every GPU and measures it. It reports, it raises nothing about the state; training itself enforces the
first two (``launch.import_torch``).
"""

from __future__ import annotations

from cache_tools.errors import StorageError
from dflash import doctor
from dflash.compile import policy
from dflash.compile.preflight import Preflight, check, host_findings
from dflash.config import Config
from dflash.console import quiet_libraries
from envguard.findings import Problem, make_finding


def inspect_compile(config: Config | None) -> list[Preflight]:
    """Run the checks at each moment, in this process."""
    host = host_findings()
    if any(finding.id == "DFL002" for finding in host):  # torch makes that directory while it is imported
        return [Preflight.before_torch(host)]
    policy.prepare_environment()
    try:
        policy.apply()
    except StorageError as error:  # a place whose rights say that it can be written, such as /sys
        message, _, fix = str(error).partition(": ")
        [check_dir] = (each for each in doctor.CHECKS if each.id == "DFL002")
        unusable = make_finding(check_dir, Problem(subject="compile cache", message=message, fix=fix))
        return [Preflight.before_torch((*host, unusable))]
    results = [check("torch alone", tries=False, more=host)]
    quiet_libraries()
    import torch

    from dflash import train
    from dflash.compile.dense import install_tripwire
    from dflash.compile.shapes import graphs_of_one_function, needed_graphs
    from dflash.devices import pick_device

    install_tripwire()
    room = 1
    if config is not None:
        device = pick_device(config.run.device)
        specs = needed_graphs(config, [device.type], attention=train.attention_kind(config, device))
        room = graphs_of_one_function(specs)
    wanted = policy.POLICY.with_room(room)
    policy.apply(wanted)
    results.append(check("after the imports", policy=wanted, needed_graphs=room))
    if torch.cuda.is_available() and not results[-1].findings:
        from dflash.compile.gpu import check_gpus

        results.append(check_gpus())
    return results
