"""Do plans compute what the step computes alone? Many steps, many meshes, many plans.

    python -m bench.verify --jobs 2

Every template on every mesh, and random plans (a random strategy per block), each compared with
the unsharded step by `cfp.plan.verify`, of which one reference per step serves all its plans.

    cases    which plans: steps by name, meshes, templates, seeds. Makes no devices
    subject  one step with its reference; makes the plan of a case and verifies it
    pool     worker processes: one that crashes fails its case and is replaced
    report   the table
"""
