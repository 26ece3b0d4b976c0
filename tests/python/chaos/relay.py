"""A process that passes connections on to servers, and is slow or holds all back when it is told to.

Arguments are pairs of ports, `here:there`. It reads lines `HERE SECONDS`: what the server says comes so much later,
and not at all below zero. It ends with its input.
"""

import asyncio
import sys

HOST = "127.0.0.1"
delays = {}


async def pass_on(reader, writer, port=None):
    try:
        while data := await reader.read(1 << 16):
            while port and delays[port] < 0:
                await asyncio.sleep(0.02)
            if port and delays[port]:
                await asyncio.sleep(delays[port])
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve(here, there):
    async def take(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, there)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer, here))

    delays[here] = 0.0
    await asyncio.start_server(take, HOST, here)


async def main():
    for pair in sys.argv[1:]:
        await serve(*map(int, pair.split(":")))
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        port, seconds = line.split()
        delays[int(port)] = float(seconds)


if __name__ == "__main__":
    asyncio.run(main())
    # A thread may still wait for input otherwise.
    sys.exit(0)
