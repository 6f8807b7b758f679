"""The asyncio API: the same names as the synchronous one, with `await`. Needs the extra `aio`."""
