"""A gateway whose users Redis's suite can change: the gateway takes users from a file only.

What the suite says goes to the gateway as it is, but for the commands that change users. A
redis-server of its own runs these, and answers; then its users are written to the gateway's file,
which a reload puts into effect before the suite has its answer.
"""

import asyncio
import threading

from harness import HOST, Gateway, Redis, free_port, server_lines
import suite
from resp import Requests, encode

#: Subcommands of ACL that the gateway leaves to its configuration, and one that takes no user.
CHANGES = {b"setuser", b"deluser", b"load", b"save", b"genpass"}
#: The user who changes users. The gateway does not have it.
KEEPER = "keeper"
#: A setting of how users are made.
SETTING = b"acl-pubsub-default"


class Administered:
    """Servers behind such a gateway; the suite connects to `port`."""

    def __init__(self, directory, servers, names):
        self.servers = servers
        place = directory / "users"
        place.mkdir()
        self.rules = Redis(place)
        # It may all, whatever becomes of the user default.
        self.rules.call("ACL", "SETUSER", KEEPER, "on", "nopass", "~*", "&*", "+@all")
        self.asking = self.rules.connect()
        self.asking.call("AUTH", KEEPER, "any")
        self.lock = threading.Lock()
        self.file = directory / "users.acl"
        self.write()
        # The log of denials is each worker's.
        pool = {"redis": True, "command_policy": "admin", "hash_tag": '"{}"', "acl_file": self.file,
                "servers": server_lines(servers, names)}
        self.gateway = Gateway(directory, {"alpha": pool}, {"worker_processes": 1})
        self.gateway.wait_serving()
        self.port = free_port()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self.listen(), self.loop).result(10)

    def write(self):
        lines = self.asking.call("ACL", "LIST")
        self.file.touch(0o600)
        users = [line for line in lines if not line.startswith(f"user {KEEPER} ".encode())]
        self.file.write_bytes(b"".join(line + b"\n" for line in users))

    async def listen(self):
        self.listener = await asyncio.start_server(self.serve, HOST, self.port)

    async def serve(self, reader, writer):
        to_gateway = None
        try:
            from_gateway, to_gateway = await asyncio.open_connection(HOST, self.gateway.address)
            back = asyncio.ensure_future(self.pass_back(from_gateway, writer))
            requests = Requests()
            while data := await reader.read(65536):
                for raw, words in requests.take(data):
                    if self.is_change(words):
                        writer.write(await asyncio.to_thread(self.change, words))
                        continue
                    to_gateway.write(raw)
                await to_gateway.drain()
            to_gateway.write_eof()
            await back
        except OSError:
            pass
        finally:
            for each in (writer, to_gateway):
                if each is not None:
                    each.close()

    async def pass_back(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    @staticmethod
    def is_change(words):
        words = [word.lower() for word in words]
        if words[:1] == [b"acl"]:
            return len(words) > 1 and words[1] in CHANGES
        return words[:2] == [b"config", b"set"] and SETTING in words

    def change(self, words):
        """Returns the answer."""
        with self.lock:
            self.asking.send(encode(words))
            answer = self.asking.raw_reply()
            if not answer.startswith(b"-"):
                self.write()
                self.gateway.reload()
        return answer

    def trouble(self):
        return suite.trouble(self.gateway)

    def cut(self):
        self.gateway.process.kill()
        self.gateway.process.start()

    def stop(self):
        self.loop.call_soon_threadsafe(self.listener.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.gateway.process.stop()
        for each in [*self.servers, self.rules]:
            each.stop()
