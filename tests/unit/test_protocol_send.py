"""Test sending as a protocol: repeats, late answers, unknown outcomes, partial failures."""

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown, SendUnknown
from cqueue.protocol import registry, writing
from cqueue.protocol.send import INLINE_BODY, TURN_US, Outgoing, ProducerState, make_flushes, send
from cqueue.protocol.writing import Bits
from cqueue.sending.results import failures
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    InsertBodies,
    InsertMessages,
    ReadBodies,
    ReadMessages,
    ReadShards,
    RegisterShard,
    UnregisterShard,
)
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, Table


def out(body: bytes = b"m", due_us: int | None = None) -> Outgoing:
    return Outgoing(body, 0, due_us, None, None)


def inserts(table: Table) -> list[InsertMessages]:
    return [operation for operation in table.log if type(operation) is InsertMessages]


def live(table: Table, flush) -> int:
    return len(table.store.execute(ReadMessages(flush.wide_row, 0, tuple(row.id for row in flush.rows))))


def failing(kind: type, error: Exception, times: int = 1):
    """Return a hook that fails the first `times` operations of a kind before they reach the store."""
    left = [times]

    def hook(operation: object) -> None:
        if type(operation) is kind and left[0]:
            left[0] -= 1
            raise error

    return hook


def test_unanswered_send_is_repeated_under_its_id():
    """Without an answer the same id is sent again inside W, so that at most one copy exists."""
    table = Table()
    (flush,) = table.run(
        send(table.spec, ProducerState(), [out()]), failing(InsertMessages, OutcomeUnknown("lost"))
    )
    assert flush.error is None
    assert not flush.remade
    assert live(table, flush) == 1
    assert table.time_us < NOON_US + SETTLE_US


def test_send_without_any_answer_is_unknown():
    """After W the outcome is unknown; nothing is deleted, the message may be there."""
    table = Table()
    hook = failing(InsertMessages, OutcomeUnknown("lost"), 1000)
    (flush,) = table.run(send(table.spec, ProducerState(), [out()]), hook)
    assert isinstance(flush.error, OutcomeUnknown)
    assert not [operation for operation in table.log if type(operation) is DeleteMessages]


def test_a_send_without_an_answer_stays_unknown_however_its_repeats_fail():
    """The first try may be stored, so that no later refusal shows that nothing is."""
    table, errors = Table(), [OutcomeUnknown("lost")]

    def hook(operation: object) -> None:
        if type(operation) is InsertMessages:
            raise errors.pop() if errors else NotDone("no")

    (flush,) = table.run(send(table.spec, ProducerState(), [out()]), hook)
    assert isinstance(flush.error, OutcomeUnknown)


def test_send_that_was_refused_is_not_done():
    """When every try certainly failed the error says so, and sending again makes no second copy."""
    table = Table()
    (flush,) = table.run(
        send(table.spec, ProducerState(), [out()]), failing(InsertMessages, NotDone("no"), 1000)
    )
    assert isinstance(flush.error, NotDone)


def test_message_without_registration_is_not_acknowledged():
    """Messages that are stored, but whose wide row no reader knows of, do not count as sent."""
    table = Table()
    hook = failing(RegisterShard, NotDone("no"), 1000)
    (flush,) = table.run(send(table.spec, ProducerState(), [out()]), hook)
    assert isinstance(flush.error, OutcomeUnknown)


def test_registration_is_remembered_only_when_stored():
    """After a registration that failed, the next send registers again."""
    table = Table()
    state = ProducerState()
    table.run(send(table.spec, state, [out()]), failing(RegisterShard, OutcomeUnknown("lost"), 1000))
    assert not state.registered
    (flush,) = table.run(send(table.spec, state, [out()]))
    assert flush.error is None
    epoch = registry.epoch_of(table.spec, flush.wide_row)
    assert table.store.execute(ReadShards("q@1", epoch, 0))


def test_parts_fail_one_by_one():
    """Of messages in two time shards, those of the one that fails fail alone."""
    table = Table()
    later_us = NOON_US + 3600 * SECOND_US

    def hook(operation: object) -> None:
        if type(operation) is InsertMessages and operation.wide_row.time_shard > NOON_US // 1000:
            raise NotDone("no")

    flushes = table.run(send(table.spec, ProducerState(), [out(), out(due_us=later_us)]), hook)
    assert [(flush.indexes, flush.error is None) for flush in flushes] == [([0], True), ([1], False)]


def test_a_part_that_fails_does_not_age_the_answers_of_others():
    """The repeats of the refused part take up to W. What was stored at once counts as stored at once."""
    table = Table()
    refused = []

    def hook(operation: object) -> None:
        if type(operation) is InsertMessages:
            refused.extend([] if refused else [operation.rows[0].id])
            if operation.rows[0].id in refused:
                table.pass_time(SECOND_US)
                raise NotDone("no")

    flushes = table.run(send(table.spec, ProducerState(), [out() for _ in range(1000)]), hook)
    outcomes = {(flush.error is None, flush.remade) for flush in flushes}
    assert outcomes == {(True, False), (False, False)}


def test_an_answer_does_not_age_while_another_is_waited_for():
    """A part that hangs for longer than W: what was stored meanwhile is not written once more."""
    table = Table()

    def hang(operation: object) -> None:
        if type(operation) is InsertMessages and inserts(table):
            table.pass_time(2 * SETTLE_US)
            raise OutcomeUnknown("lost")

    flushes = table.run(send(table.spec, ProducerState(), [out() for _ in range(1000)]), hang)
    assert [(flush.error is None, flush.remade) for flush in flushes] == [(True, False), (False, False)]
    assert len(inserts(table)) == 1


def test_an_answer_that_came_late_is_late_however_long_others_take():
    """Readers may have passed its ids before it came."""
    table = Table()

    def hang(operation: object) -> None:
        if type(operation) is InsertMessages:
            table.pass_time(SETTLE_US + 1 if not inserts(table) else SECOND_US)

    flushes = table.run(send(table.spec, ProducerState(), [out() for _ in range(1000)]), hang)
    assert all(flush.remade for flush in flushes)


def refusing(refused: dict[int, int]):
    """Return a hook that refuses flushes. refused: how often, by their places in the order of first tries."""
    places: dict[int, int] = {}

    def hook(operation: object) -> None:
        if type(operation) is InsertMessages:
            place = places.setdefault(operation.rows[0].id, len(places))
            if refused.get(place):
                refused[place] -= 1
                raise NotDone("no")

    return hook


def test_each_part_that_fails_is_repeated():
    """The repeats of a part that fails for the whole of W leave those of the others their time."""
    table, hook = Table(), refusing({0: 1000, 1: 2, 2: 3})
    flushes = table.run(send(table.spec, ProducerState(), [out() for _ in range(1500)]), hook)
    assert [flush.error is None for flush in flushes] == [True, True, False]


def test_no_part_waits_for_the_repeats_of_another(monkeypatch):
    """Of parts that are not written side by side either: they would be late, and written twice."""
    monkeypatch.setattr("cqueue.protocol.writing.PARTS_IN_FLIGHT", 1)
    table = Table()
    flushes = table.run(send(table.spec, ProducerState(), [out() for _ in range(1500)]), refusing({0: 1000}))
    assert [(flush.error is None, flush.remade) for flush in flushes] == [
        (True, False),
        (True, False),
        (False, False),
    ]
    assert len(inserts(table)) == 2


def test_delayed_message_has_until_its_due_time():
    """A message due later is acknowledged however long its answer took: no cursor can have passed it."""
    table = Table()

    def slow(operation: object) -> None:
        if type(operation) is InsertMessages:
            table.pass_time(10 * SETTLE_US)

    due_us = NOON_US + 3600 * SECOND_US
    (flush,) = table.run(send(table.spec, ProducerState(), [out(due_us=due_us)]), slow)
    assert flush.error is None
    assert not flush.remade


def slow_first_insert(table: Table):
    left = [1]

    def hook(operation: object) -> None:
        if type(operation) is InsertMessages and left[0]:
            left[0] -= 1
            table.pass_time(SETTLE_US + 1000)

    return hook


def test_remade_message_stands_in_its_ids_time_shard():
    """New ids can lie ahead of the clock, after the end of the time shard of now: they go to the next.

    In the shard of now they could be dropped with it, acknowledged.
    """
    table = Table()
    state = ProducerState()
    table.pass_time(table.end_us - NOON_US - SETTLE_US - 1000 - SECOND_US)

    slow = slow_first_insert(table)

    def hook(operation: object) -> None:
        slow(operation)
        if type(operation) is InsertMessages and len(inserts(table)) == 0:
            state.last_ticks = (table.end_us - 1) * 10 + 5  # ids handed out before the clock was set back

    flushes = table.run(send(table.spec, state, [out() for _ in range(20)]), hook)
    assert [flush.remade for flush in flushes] == [True, True]
    for flush in flushes:
        assert {registry.normal_row(table.spec, ids.time_us(row.id), 0) for row in flush.rows} == {
            flush.wide_row
        }
    assert sorted(index for flush in flushes for index in flush.indexes) == list(range(20))


def test_a_late_message_that_cannot_be_written_again_is_unknown():
    """Its first copy is stored and may be read: told "not done", a caller would send a second one."""
    table = Table()
    slow = slow_first_insert(table)

    def hook(operation: object) -> None:
        slow(operation)
        if type(operation) is InsertMessages and inserts(table):
            raise NotDone("no")

    (flush,) = table.run(send(table.spec, ProducerState(), [out()]), hook)
    assert flush.remade
    assert isinstance(flush.error, OutcomeUnknown)
    assert live(table, inserts(table)[0]) == 1


def test_an_unknown_outcome_names_the_ids_of_all_tries():
    """The first copy is stored, and the later ids may not be: who looks by id must find the message."""
    table, state = Table(), ProducerState()
    table.pass_time(table.end_us - NOON_US - SETTLE_US - 1000 - SECOND_US)
    slow = slow_first_insert(table)

    def hook(operation: object) -> None:
        slow(operation)
        if type(operation) is InsertMessages and inserts(table):
            raise NotDone("no")
        if type(operation) is InsertMessages:  # the new ids fall into two time shards
            state.last_ticks = (table.end_us - 1) * 10 + 5

    flushes = table.run(send(table.spec, state, [out() for _ in range(20)]), hook)
    (first,) = inserts(table)
    assert len(flushes) == 2
    for flush in flushes:
        failed = failures(flush, lambda tried: [str(row.id) for row in tried.rows], SendUnknown, "message")
        assert [(index, error.ids) for index, error in failed] == [
            (index, (str(first.rows[index].id), str(row.id)))
            for index, row in zip(flush.indexes, flush.rows, strict=True)
        ]


def test_a_send_that_is_late_each_time_ends_as_unknown():
    """It is stored each time, and nobody may believe that it counts."""
    table = Table()

    def be_slow(operation: object) -> None:
        if type(operation) is InsertMessages:
            assert len(inserts(table)) <= writing.REMAKES, "without an end"
            table.pass_time(SETTLE_US + 1)

    (flush,) = table.run(send(table.spec, ProducerState(), [out()]), be_slow)
    assert isinstance(flush.error, OutcomeUnknown)
    assert len(inserts(table)) == 1 + writing.REMAKES


def test_a_repeat_that_just_fits_into_w_is_made():
    """An answer at exactly W counts, so the last moment is used, too."""
    table = Table(settle_us=int(writing.FIRST_PAUSE_S * SECOND_US))
    (flush,) = table.run(send(table.spec, ProducerState(), [out()]), failing(InsertMessages, NotDone("no")))
    assert flush.error is None
    assert not flush.remade


def test_a_wide_row_is_registered_once():
    """However many other wide rows a producer registers in between."""
    table, state = Table(), ProducerState()
    for later_s in (0, 3600, 0, 3600, 7200, 0):
        table.run(send(table.spec, state, [out(due_us=NOON_US + later_s * SECOND_US)]))
    registered = [op for op in table.log if type(op) is RegisterShard and op.epoch != registry.EPOCH_INDEX]
    assert len(registered) == 3


def test_a_long_send_is_cut_into_stretches_of_equal_length():
    """The later ones too: each has to be written within a fraction of W."""
    entries = [out()] * 25
    assert list(writing._stretches(entries, 10)) == [(0, 10), (10, 20), (20, 25)]


def test_late_message_that_cannot_be_deleted_keeps_its_body():
    """A late copy may still be delivered if its deletion fails: then its large body must be there.

    Without it nobody could deliver, bury or drain the message.
    """
    table = Table()

    slow = slow_first_insert(table)

    def hook(operation: object) -> None:
        slow(operation)
        if type(operation) is DeleteMessages:
            raise NotDone("no")

    (flush,) = table.run(send(table.spec, ProducerState(), [out(bytes(INLINE_BODY + 1))]), hook)
    late = inserts(table)[0]
    assert flush.remade
    assert late.rows[0].id != flush.rows[0].id
    assert table.store.execute(ReadBodies(late.wide_row, (late.rows[0].id,)))
    assert not [operation for operation in table.log if type(operation) is DeleteBodies]


def test_late_registration_does_not_revive_a_retired_row():
    """A registry row that was deleted stays deleted, however late a producer writes it again."""
    table = Table()
    register, _ = registry.registration(table.spec, table.row, 0)
    table.store.execute(register)
    table.store.execute(UnregisterShard("q@1", register.epoch, table.row.time_shard, 0))
    table.store.execute(register)
    assert table.store.execute(ReadShards("q@1", register.epoch, 0)) == []


def test_ids_of_a_producer_grow():
    """Ids of one producer grow even while its clock stands still or is set back, so they never collide."""
    table = Table()
    state = ProducerState()
    seen: list[int] = []
    for step_us in (0, 0, -400_000, 10):
        table.pass_time(step_us)
        for flush in table.run(send(table.spec, state, [out(), out()])):
            seen += [row.id for row in flush.rows]
    assert seen == sorted(set(seen))
    ticks = [ids.to_uuid(id_).time for id_ in seen]
    assert ticks[::2] == sorted(set(ticks))


def test_a_trickle_stays_in_a_shard_for_a_quarter_of_a_second():
    """So a claim finds several messages; then it is the next shard's turn."""
    table, state, found = Table(shards=4), ProducerState(), []
    for pause_us in (0, TURN_US - 1, 1, TURN_US - 1):
        table.pass_time(pause_us)
        found += [flush.wide_row.shard for flush in table.run(send(table.spec, state, [out()]))]
    assert found == [1, 1, 2, 2]


def test_headers_count_as_bytes_of_a_flush():
    """Names and values: a flush of small bodies and large headers would be too large a batch."""
    some = [Outgoing(b"", 0, None, {"n" * 1000: "v" * 100_000}, None)] * 30
    bits = Bits(bytes(8 * len(some)))
    flushes = make_flushes(Table(packs=False).spec, ProducerState(), some, NOON_US, bits)
    assert [len(flush.rows) for flush in flushes] == [11, 11, 8]
    assert all(flush.size == 101_000 * len(flush.rows) for flush in flushes)


def test_large_bodies_stand_between_their_registration_and_their_messages():
    """A producer that dies in the middle leaves no body that nobody drops, no message without its body."""
    table = Table()
    table.run(send(table.spec, ProducerState(), [out(bytes(INLINE_BODY + 1)), out(b"small")]))
    order = [type(op) for op in table.log if type(op) in {RegisterShard, InsertBodies, InsertMessages}]
    assert order == [RegisterShard, RegisterShard, InsertBodies, InsertMessages]


def test_unstored_body_means_an_unsent_message():
    """However the body failed, the message was not written: not done, safe to send again."""
    table = Table()
    hook = failing(InsertBodies, OutcomeUnknown("lost"), 1000)
    (flush,) = table.run(send(table.spec, ProducerState(), [out(bytes(INLINE_BODY + 1))]), hook)
    assert isinstance(flush.error, NotDone)
    assert not inserts(table)


def test_ids_of_a_long_send_are_made_when_they_are_written():
    """A slow cluster does not make the later parts of one large send late."""
    table = Table()

    def slow(operation: object) -> None:
        if type(operation) is InsertMessages:
            table.time_us += SECOND_US * 3 // 2

    flushes = table.run(send(table.spec, ProducerState(), [out()] * 4000), slow)
    first, last = flushes[0].rows[0].id, flushes[-1].rows[0].id
    assert ids.time_us(last) - ids.time_us(first) >= SECOND_US


def test_a_send_to_many_time_shards_keeps_its_order():
    """Entries are answered by their places, whatever flush they went with."""
    table = Table()
    entries = [out(b"%d" % n, NOON_US + (n % 40) * 60_000_000) for n in range(2500)]
    flushes = table.run(send(table.spec, ProducerState(), entries))
    bodies = {
        index: row.body for flush in flushes for index, row in zip(flush.indexes, flush.rows, strict=True)
    }
    assert bodies == {n: b"%d" % n for n in range(2500)}


def test_large_sends_are_not_late_by_themselves():
    """Ids of large bodies are made just before those are written: none is sent a second time."""
    table = Table()

    def slow(operation: object) -> None:
        if type(operation) is InsertBodies:
            table.time_us += SECOND_US // 4

    flushes = table.run(send(table.spec, ProducerState(), [out(bytes(1 << 20))] * 20), slow)
    assert not any(flush.remade or flush.error for flush in flushes)
