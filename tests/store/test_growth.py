"""What a long chain costs: bytes once per item, and a history in two queries at most."""

from __future__ import annotations

from sqlalchemy import func, select

from proxy.store import _tables as t
from proxy.store._sql import SqlStore
from tests.store.records import ALICE, call, chain, conversation, ids, rows, saved, statements, turn

TURNS = 500


async def test_a_chain_of_turns_and_its_branches_grow_linearly(store: SqlStore) -> None:
    turns = await chain(store, TURNS)
    own = sum(len(item.body) for record in turns for item in record.input + record.output)
    for number in range(0, TURNS, 50):
        history = await store.history(ALICE, f"resp_{number}")
        branch = await saved(store, turn(f"branch_{number}", history))
        own += sum(len(item.body) for item in branch.input + branch.output)
    branches = len(range(0, TURNS, 50))
    assert await rows(store) == {
        "items": 2 * (TURNS + branches),
        "responses": TURNS + branches,
        "threads": 1 + branches,
    }
    async with store.database.reader.connect() as connection:
        assert await connection.scalar(select(func.sum(func.length(t.items.c.body)))) == own
    with statements(store) as seen:
        history = await store.history(ALICE, f"resp_{TURNS - 1}")
    assert len(seen) <= 2
    assert history is not None
    assert history.items == tuple(item for record in turns for item in record.input + record.output)


async def test_a_branch_of_a_branch_is_read_in_as_many_queries(store: SqlStore) -> None:
    expected: list[str] = []
    history = None
    for number in range(30):
        record = await saved(store, turn(f"resp_{number}", history))
        history = await store.history(ALICE, f"resp_{number}")
        await store.save(turn(f"first_{number}", history))  # takes the tip, so that the next turn has to fork
        expected += [item.id for item in record.input + record.output]
    with statements(store) as seen:
        assert await ids(store, "resp_29") == expected
    assert len(seen) <= 2
    assert (await rows(store))["threads"] == 30


async def test_a_conversation_is_read_in_two_queries(store: SqlStore) -> None:
    await conversation(store)
    with statements(store) as seen:
        await store.conversation_history(ALICE, "conv_1")
    assert len(seen) <= 2


async def test_the_reads_by_id_use_an_index(store: SqlStore) -> None:
    await store.save(turn("resp_1", output=(call("call_1"),)))
    explain = "EXPLAIN QUERY PLAN " if store.database.reader.dialect.name == "sqlite" else "EXPLAIN "
    with statements(store) as seen:
        await store.history(ALICE, "resp_1")
        await store.calls(ALICE, ["call_1"])
        await store.items(ALICE, ["msg_1"])
    if explain == "EXPLAIN ":
        return  # Postgres scans a table this small whatever its indexes
    async with store.database.reader.connect() as connection:
        for statement in seen:
            values = tuple("x" for _ in range(statement.count("?")))
            plan = (await connection.exec_driver_sql(explain + statement, values)).all()
            steps = [str(row[-1]).split() for row in plan]
            scans = [step for step in steps if step[0] == "SCAN" and step[1] in t.metadata.tables]
            assert not scans, statement
