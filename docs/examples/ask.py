"""Ask one question: `. .headrace/up/env.sh && python docs/examples/ask.py`."""

import asyncio

from headrace.connect import connect


async def main() -> None:
    """The answer is checked against the chain before it is shown."""
    async with connect() as headrace:
        answer = await headrace.ask("In one short sentence: why is the sky blue?")
        print(answer.text)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
