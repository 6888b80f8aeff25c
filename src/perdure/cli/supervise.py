"""What `perdure worker` becomes: a supervisor without the command line's libraries, a third of its memory.

`python -m perdure.cli.supervise MODULE:APP OPTIONS`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from perdure.engine.supervisor import Supervisor
from perdure.errors import PerdureError, UsageError
from perdure.store.turn import may_be_ended
from perdure.watch.log import configure, log_events


def main() -> None:
    target, options = sys.argv[1], json.loads(sys.argv[2])
    may_be_ended()

    async def run() -> int:
        supervisor = Supervisor(target, options)
        log_events(supervisor.events)
        return await supervisor.run()

    try:
        configure(os.environ.get("PERDURE_LOG_LEVEL", "INFO"))
        sys.exit(asyncio.run(run()))
    except PerdureError as error:
        print(f"perdure: {error} [{error.code}]", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
