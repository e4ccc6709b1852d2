"""Runs the migrations on the connection that `proxy.store.schema` hands over, inside its transaction and lock."""

from alembic import context

from proxy.store._tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
