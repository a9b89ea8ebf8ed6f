"""Requests sent to a destination, one after the other, and what came of each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from servescope.customers.points.points import Accepted, StreamPoint
from servescope.customers.policy.policy import Push
from servescope.customers.transports.senders import make_sender
from servescope.web.posting import SendError
from tests.customers.support.customer_points import kind_of_each


async def send(push: Push, *batches: Sequence[StreamPoint]) -> list[Accepted | SendError]:
    """The outcome of each of these requests, of one sender."""
    outcomes: list[Accepted | SendError] = []
    with ThreadPoolExecutor(1) as executor:
        sender = make_sender(push, executor)
        try:
            for batch in batches:
                try:
                    outcomes.append(await sender.send(batch))
                except SendError as error:
                    outcomes.append(error)
        finally:
            await sender.close()
    return outcomes


async def fail(push: Push, batch: Sequence[StreamPoint] | None = None) -> SendError:
    """The error of one request."""
    (outcome,) = await send(push, batch or kind_of_each())
    assert isinstance(outcome, SendError), outcome
    return outcome


async def succeed(push: Push, batch: Sequence[StreamPoint] | None = None) -> Accepted:
    """The answer to one request that is accepted, in full or in part."""
    (outcome,) = await send(push, batch or kind_of_each())
    assert isinstance(outcome, Accepted), outcome
    return outcome
