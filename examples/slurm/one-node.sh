#!/bin/bash
# One server on one node. Its job is started again until the input is done.
#
#   sbatch one-node.sh prompts.jsonl --output answers.jsonl --backend vllm --model Qwen/Qwen3-8B
#
#SBATCH --job-name=stoker
#SBATCH --output=stoker-%j.log
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=04:00:00
# Slurm may start the job again, after a preemption or the loss of its node; the log is then gone on with.
#SBATCH --requeue
#SBATCH --open-mode=append
# SIGUSR1 comes 120 s before the time limit, to this script alone ("B:"), which passes it on below.
#SBATCH --signal=B:USR1@120

# In the background, because bash handles a signal only after the command that it waits for; `wait` is broken off by one.
stoker generate "$@" &
job=$!
trap 'kill -USR1 "$job"' USR1
trap 'kill -TERM "$job"' TERM
while kill -0 "$job" 2> /dev/null; do
    wait "$job"
done
wait "$job"
code=$?
trap - USR1 TERM

# 75: out of time with work left. The job is queued again under its own number, with its full time, and goes on.
if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
