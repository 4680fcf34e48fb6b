"""Runners compile and run programs: in this process, in a worker, on a stand-in, or over
several processes.

The files, in the order of processing:

    job               what a runner is given, and what it answers
    runner            the one interface that every runner has
    settings          the settings and the environment that a measurement depends on
    local_devices     what a process has of a mesh, and how it waits for the others
    executable        a job, compiled, and its inputs
    exchange          processes that run the same programs compile each only once
    xplane            where the time of a run went
    session           what happens in the process that owns the devices
    in_process        the runner in this very process
    messages          what is said to a worker, and between the processes of a team
    scratch           folders that go with their process
    worker            the process that owns the devices
    child             the worker, seen from the process that started it
    process           the runner with a worker
    stand_in          local GPUs that stand in for a mesh that is not there
    stand_in_worker   the worker that has them
    team_member       one process of a team at work
    team_runner       the runner over the processes of a team
    shared_decision   one decision by many processes
"""
