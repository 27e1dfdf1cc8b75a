#!/usr/bin/env python3
"""The way to a member of etcd, for whoever asks it; members speak to each other beside it.

    way.py HOST PORT TARGET_PORT

A line of JSON on its input says what it is like from there on: {"requests": s, "answers": s} come so late, {"mute": true}: it takes requests, and nothing
comes of them. What is under way when that ends arrives at once.
"""
import asyncio
import json
import sys


class Way:
    def __init__(self, host, port, target):
        self.host, self.port, self.target = host, port, target
        self.state, self.changed = {}, asyncio.Event()

    def set(self, state):
        self.state = state
        self.changed.set()
        self.changed = asyncio.Event()

    async def delay(self, name):
        if self.state.get(name):
            try:
                await asyncio.wait_for(self.changed.wait(), self.state[name])
            except asyncio.TimeoutError:
                pass

    async def carry(self, source, sink, name):
        try:
            while part := await source.read(65536):
                await self.delay(name)
                if not self.state.get("mute"):
                    sink.write(part)
                    await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    async def serve(self, reader, writer):
        try:
            there_reader, there_writer = await asyncio.open_connection(self.host, self.target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self.carry(reader, there_writer, "requests"), self.carry(there_reader, writer, "answers"))

    async def run(self):
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        async with await asyncio.start_server(self.serve, self.host, self.port):
            print("ready", flush=True)
            while line := await lines.readline():
                self.set(json.loads(line))


def main():
    host, port, target = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

    async def run():
        await Way(host, port, target).run()
    asyncio.run(run())


if __name__ == "__main__":
    main()
