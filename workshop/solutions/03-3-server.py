"""Lesson 03, exercise 3. Wait for each event with a time limit, without cancelling the wait when it is over."""

SILENCE = 0.5  # seconds


async def events(stream: Stream, watch: asyncio.Task, _events=events) -> AsyncIterator[str]:
    iterator = _events(stream, watch)
    upcoming = asyncio.ensure_future(anext(iterator))
    while True:
        done, _ = await asyncio.wait([upcoming], timeout=SILENCE)
        if not done:
            yield ": still waiting\n\n"
            continue
        try:
            yield upcoming.result()
        except StopAsyncIteration:
            return
        upcoming = asyncio.ensure_future(anext(iterator))
