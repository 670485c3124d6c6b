"""Calls that travel together: who gets which answer, who fails alone, and who is not waited for."""

import asyncio
from collections.abc import Sequence

import pytest

from leasekeeper.errors import Conflict, StoreError, StoreUnavailable
from leasekeeper.stores.sql.batching import Batcher


class Wire:
    """Takes batches; answers each item with its double, at once or when asked to."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once
        self.sent: list[list[int]] = []
        self.under_way: list[asyncio.Future[list[int]]] = []
        self.given_back: list[int] = []
        self.batcher: Batcher[int, list[int], int] = Batcher(self.send, self.finish, 4, self.give_back)

    def send(self, items: Sequence[int]) -> "asyncio.Future[list[int]]":
        self.sent.append(list(items))
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        if 13 in items:
            future.set_exception(Conflict("not this one"))
        elif 99 in items:
            raise StoreUnavailable("nobody is there")
        elif self.at_once:
            future.set_result(list(items))
        else:
            self.under_way.append(future)
        return future

    def finish(self, raw: list[int]) -> list[int]:
        return [2 * item for item in raw]

    async def give_back(self, answer: int) -> None:
        self.given_back.append(answer)

    async def answer(self) -> None:
        """Let the batch that is under way arrive, and everybody who waits for it go on."""
        self.under_way.pop(0).set_result(self.sent[-1])
        await rest()


async def rest() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_comes_at_one_moment_or_meanwhile_goes_together_in_order() -> None:
    wire = Wire()
    calls = [asyncio.create_task(wire.batcher.put(n)) for n in (1, 2)]
    await rest()
    calls += [asyncio.create_task(wire.batcher.put(n)) for n in range(3, 9)]
    await rest()
    for _ in range(3):
        await wire.answer()
    assert wire.sent == [[1, 2], [3, 4, 5, 6], [7, 8]]
    assert await asyncio.gather(*calls) == [2 * n for n in range(1, 9)]


async def test_an_item_that_is_wrong_fails_alone() -> None:
    wire = Wire(at_once=True)
    answers = await asyncio.gather(*(wire.batcher.put(n) for n in (1, 13, 2)), return_exceptions=True)
    assert wire.sent == [[1, 13, 2], [1], [13], [2]]
    assert [answers[0], answers[2]] == [2, 4]
    assert isinstance(answers[1], Conflict)
    assert await wire.batcher.put(5) == 10


async def test_a_store_that_failed_is_not_asked_again() -> None:
    wire = Wire(at_once=True)
    answers = await asyncio.gather(*(wire.batcher.put(n) for n in (1, 99)), return_exceptions=True)
    assert wire.sent == [[1, 99]]
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert await wire.batcher.put(5) == 10


async def test_what_was_done_is_not_done_again_when_its_answer_cannot_be_given() -> None:
    wire = Wire(at_once=True)
    finish = wire.finish

    def stumble(raw: list[int]) -> list[int]:
        wire.batcher._finish = finish
        raise StopIteration

    wire.batcher._finish = stumble
    answers = await asyncio.gather(*(wire.batcher.put(n) for n in (1, 2)), return_exceptions=True)
    assert wire.sent == [[1, 2]]
    assert all(isinstance(answer, StoreError) for answer in answers)
    assert await wire.batcher.put(5) == 10


async def test_another_loop_that_is_running_has_its_own_store() -> None:
    wire = Wire()
    mine = asyncio.create_task(wire.batcher.put(1))
    await rest()
    with pytest.raises(StoreError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, wire.batcher.put(2))
    await wire.answer()
    assert await mine == 2


async def test_answers_that_nobody_waits_for_are_given_back() -> None:
    wire = Wire()
    early, late, there = (asyncio.create_task(wire.batcher.put(n)) for n in (1, 2, 3))
    await asyncio.sleep(0)
    early.cancel()
    await rest()
    assert wire.sent == [[2, 3]]
    late.cancel()
    await rest()
    await wire.answer()
    assert wire.given_back == [4]
    assert await there == 6


def test_a_loop_that_ended_in_the_middle_keeps_nobody_waiting() -> None:
    wire = Wire()

    async def leave() -> None:
        asyncio.get_running_loop().create_task(wire.batcher.put(1))
        await rest()

    asyncio.run(leave())
    wire.at_once = True
    assert asyncio.run(asyncio.wait_for(wire.batcher.put(2), 30)) == 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_loop_and_not_the_batcher(error: type[BaseException]) -> None:
    wire = Wire(at_once=True)
    send = wire.send

    def interrupted(items: Sequence[int]) -> "asyncio.Future[list[int]]":
        raise error

    async def together() -> None:
        await asyncio.gather(*(wire.batcher.put(n) for n in range(6)))

    wire.batcher._send = interrupted
    with pytest.raises(error):
        asyncio.run(together())
    wire.batcher._send = send
    assert asyncio.run(wire.batcher.put(2)) == 4
