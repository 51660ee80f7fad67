"""One life of the demo's pipeline, in a process of its own.

    python -m holdfast.spark.demo_life PIPELINE.yaml [DIE_AT]

``DIE_AT`` is ``step:before|after:epoch:sink`` (``*`` for any): there it kills its process group, JVM and all.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from holdfast.coordinator import Observer, Step
from holdfast.pipeline import load_yaml
from holdfast.spark.running import run_pipeline
from holdfast.spark.session import session_for

#: Lives of a few seconds do not pay for the second compiler.
SHORT_LIVED = {"spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def dying_at(where: str | None, then: Observer) -> Observer:
    """Tell ``then`` of every step; at ``where``, kill this process and everything it started."""
    wanted = where.split(":") if where else None

    def observe(step: Step) -> None:
        here = (step.name, step.when, str(step.epoch), step.sink or "")
        if wanted and all(one in ("*", other) for one, other in zip(wanted, here, strict=True)):
            os.killpg(os.getpgid(0), signal.SIGKILL)
        then(step)

    return observe


def tell(step: Step) -> None:
    """The few steps that a person wants to read."""
    facts = step.facts
    if (step.name, step.when) == ("start", "after"):
        _say(f"generation {facts['generation']}")
    elif (step.name, step.when) == ("replay", "after"):
        _say(f"replayed epoch {step.epoch} from its recorded offsets, sinks closed")
    elif (step.name, step.when) == ("resolve", "after"):
        done = [f"{name} already showed it" for name in facts["shown"]]
        done += [f"{name} commits it now" for name in facts["committed"]]
        _say(f"epoch {step.epoch} was decided: {', '.join(done)}")
    elif (step.name, step.when) == ("publish", "after"):
        _say(f"epoch {step.epoch} decided")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # the next thing this process does may be to die


def main(yaml: str, die_at: str | None = None) -> None:
    spec = load_yaml(Path(yaml))
    session = session_for(spec.name, {"spark.master": "local[2]", **SHORT_LIVED, **spec.spark})
    run_pipeline(spec, session=session, observe=dying_at(die_at, tell))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
