"""A WebSocket client of its own, on PyPI's `websockets`: connections that each send messages by the clock and wait for
the echo. Prints how many came back and how long they took, as JSON."""

import asyncio
import json
import sys
import time

from websockets.asyncio.client import connect


async def client(url, number, clients, per_second, seconds, size, took, start):
    async with connect(url, compression=None) as socket:
        await start.wait()
        message = f"{number:08}" + "x" * (size - 8)
        gap = 1 / per_second
        due = time.perf_counter() + gap * number / clients
        for _ in range(round(per_second * seconds)):
            await asyncio.sleep(due - time.perf_counter())
            sent = time.perf_counter()
            await socket.send(message)
            answer = await socket.recv()
            took.append(time.perf_counter() - sent)
            if answer != message:
                raise SystemExit("an echo differs from what was sent")
            due += gap


async def main(url, clients, per_second, seconds, size):
    took, start = [], asyncio.Event()
    tasks = [asyncio.create_task(client(url, number, clients, per_second, seconds, size, took, start))
             for number in range(clients)]
    await asyncio.sleep(0.5)
    start.set()
    await asyncio.gather(*tasks)
    took.sort()
    print(json.dumps({"messages": len(took), "mean": sum(took) / len(took), "p50": took[len(took) // 2],
                      "p90": took[len(took) * 9 // 10]}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:6])))
