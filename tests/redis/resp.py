"""Requests of Redis's protocol, cut out of what a client sends."""


def encode(words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Requests:
    def __init__(self):
        self.buffer = b""

    def take(self, data):
        """Each whole request: its bytes, and its words. What is no array is passed on line by line."""
        self.buffer += data
        while True:
            found = self.first()
            if found is None:
                return
            length, words = found
            raw, self.buffer = self.buffer[:length], self.buffer[length:]
            yield raw, words

    def line(self, start):
        end = self.buffer.find(b"\n", start)
        return (None, None) if end < 0 else (self.buffer[start:end].rstrip(b"\r"), end + 1)

    def first(self):
        """Its length and its words, once it is all there."""
        head, at = self.line(0)
        if head is None:
            return None
        if not head.startswith(b"*"):
            return at, head.split()
        try:
            count, words = int(head[1:]), []
            for _ in range(count):
                head, at = self.line(at)
                if head is None:
                    return None
                length = int(head[1:])
                if len(self.buffer) < at + length + 2:
                    return None
                words.append(self.buffer[at:at + length])
                at += length + 2
        except ValueError:
            # The gateway is to say what is wrong.
            return len(self.buffer), []
        return at, words
