#!/usr/bin/env bash
# Trains GPT-lite, from any directory:
#
#   run.sh deepspeed CONFIG [option of train.py ...]   all GPUs of this machine
#   run.sh torchrun  CONFIG [option of train.py ...]   the same, started by torchrun
#   run.sh python    CONFIG [option of train.py ...]   one process
#   run.sh hostfile  CONFIG [option of train.py ...]   the machines of HOSTFILE, over ssh
#   run.sh nodes     CONFIG [option of train.py ...]   one of NODES machines: start it on each
#
# CONFIG is a file, or the name of one in configs/ without .json. PROCESSES is how many run on a
# machine (as many as there are GPUs, or one). For `nodes`, HEAD is the name of the first machine.
# PORT is where processes meet (29500).
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
if [[ $# -lt 2 ]]; then
  sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
launcher=$1
config=$2
shift 2
if [[ ! -e $config && -e $here/configs/$config.json ]]; then
  config=$here/configs/$config.json
fi
if [[ -z ${PROCESSES:-} ]]; then
  PROCESSES=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) || PROCESSES=0
  PROCESSES=$((PROCESSES > 0 ? PROCESSES : 1))
fi
PORT=${PORT:-29500}
program=("$here/train.py" --deepspeed_config "$config" "$@")

case $launcher in
  deepspeed)
    exec deepspeed --num_gpus "$PROCESSES" --master_port "$PORT" "${program[@]}"
    ;;
  torchrun)
    exec torchrun --standalone --nproc-per-node "$PROCESSES" "${program[@]}"
    ;;
  python)
    exec python "${program[@]}"
    ;;
  hostfile)
    : "${HOSTFILE:?is needed: a file like hostfile.example}"
    exec deepspeed --hostfile "$HOSTFILE" --master_port "$PORT" "${program[@]}"
    ;;
  nodes)
    : "${NODES:?is needed: how many machines}" "${HEAD:?is needed: the name of the first}"
    exec torchrun --nnodes "$NODES" --nproc-per-node "$PROCESSES" \
      --rdzv-backend c10d --rdzv-endpoint "$HEAD:$PORT" "${program[@]}"
    ;;
  *)
    echo "run.sh: '$launcher' is none of deepspeed, torchrun, python, hostfile, nodes" >&2
    exit 2
    ;;
esac
