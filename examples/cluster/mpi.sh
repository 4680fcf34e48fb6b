#!/bin/bash
# Plans on 4 hosts with Open MPI: bash examples/cluster/mpi.sh hosta hostb hostc hostd
set -euo pipefail
export CFP_SECRET=$(openssl rand -hex 32)
HOSTS=$(IFS=,; echo "$*")

mpirun -x CFP_SECRET --host "$HOSTS" -n $# --map-by node \
    cfp plan my_project.train:make_step --mesh ${#}x8 --coordinator "$1:1234" --out plan.json
