"""Everything that commands load, for the process that the tests' commands are forked from."""

import rich.live
import rich.markdown
import rich.progress
import rich.table

import perdure.app
import perdure.cli.main
import perdure.cli.status
import perdure.pipelines.document
import perdure.pipelines.image
import perdure.pipelines.mail
import perdure.store.postgres
import perdure.store.sqlite

__all__ = ["perdure", "rich"]
