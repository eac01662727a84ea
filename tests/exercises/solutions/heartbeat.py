async def events(stream, watch, _events=events):  # noqa: F821 (appended to 03_streaming/server.py)
    """The events, with a comment line for every half second in which there was none."""
    iterator = _events(stream, watch)
    upcoming = asyncio.ensure_future(anext(iterator))  # noqa: F821
    while True:
        done, _ = await asyncio.wait([upcoming], timeout=0.5)  # noqa: F821
        if not done:
            yield ": still waiting\n\n"
            continue
        try:
            yield upcoming.result()
        except StopAsyncIteration:
            return
        upcoming = asyncio.ensure_future(anext(iterator))  # noqa: F821
