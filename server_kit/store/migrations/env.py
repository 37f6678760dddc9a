"""What Alembic runs: the missing steps, on the connection and in the transaction that `migrating` has begun."""

from __future__ import annotations

from alembic import context

from server_kit.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
