#!/bin/bash
# One model on several nodes. srun starts the same command on each of them; Slurm's variables tell it which it is. The
# first node takes the prompts and writes the answers, the others serve their part of the model until that is over.
#
#   sbatch multi-node.sh prompts.jsonl --output answers.jsonl --backend vllm --model meta-llama/Llama-3.1-405B \
#       --tensor-parallel 8 --set pipeline_parallel=2
#
#SBATCH --job-name=stoker
#SBATCH --output=stoker-%j.log
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Without "B:" the signal goes to the tasks that srun has started, on every node. A signal to srun itself may get lost:
# to send one by hand, use `scancel --signal=USR1 JOB`.
#SBATCH --signal=USR1@120

# A key that only this job knows, so that nobody else on the network joins it.
STOKER_GROUP_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export STOKER_GROUP_KEY

# No node is ended because another one has ended: they end together, in their own order.
srun --kill-on-bad-exit=0 stoker generate --nodes "$SLURM_JOB_NUM_NODES" "$@"
code=$?

if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
