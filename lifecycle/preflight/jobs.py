"""What is to be seen of a generate job before its server is started: its input, its output, and what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lifecycle.batch.config import JobConfig
from lifecycle.batch.functions import find_rollout
from lifecycle.batch.plan import prepare
from lifecycle.errors import ConfigError, InputError, OutputError
from lifecycle.preflight import Check, blocker, ok


def job_row(job: JobConfig, environ: Mapping[str, str]) -> Check:
    """Input and output of a job. Blocks: every record of the input is looked at. The output's lock is held meanwhile,
    and an output that was not there is not there afterwards."""
    try:
        if job.rollout:
            find_rollout(job.rollout)
        plan = prepare(replace(job, retry_errors=False), environ)  # that would drop lines
        plan.begun = False
        with plan:
            total = "an unknown number of" if plan.total is None else str(plan.total)
            done = f", {plan.earlier} of them finished" if plan.earlier else ""
            wrong = f", {plan.failed} of these with an error" if plan.failed else ""
            found = f"{total} records in {job.input}{done}{wrong}; answers go to {plan.output}"
    except InputError as error:
        return blocker("input", str(error), "")
    except OutputError as error:
        return blocker("output", str(error), "")
    except ConfigError as error:
        return blocker("job", str(error), "")
    return ok("job", found)
