#!/bin/bash
# An array of servers that know nothing of each other. Each task takes its share of the input by its number in the array
# and writes an output of its own, answers.rank-00000-of-00064.jsonl and so on; together they have every record once.
#
#   sbatch array.sh prompts.jsonl --output answers.jsonl --backend vllm --model Qwen/Qwen3-8B
#   sbatch --array=0-7 array.sh ...          another number of shares, for a new output
#
#SBATCH --job-name=stoker
#SBATCH --output=stoker-%A_%a.log
#SBATCH --array=0-63
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120

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

# This task alone: SLURM_JOB_ID of the last task is the number of the whole array.
if [ "$code" -eq 75 ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
fi
exit "$code"
