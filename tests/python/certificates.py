"""Certificates for tests, made by the command openssl."""

import itertools
import subprocess


class Pair:
    """A certificate and its key, as files."""

    def __init__(self, certificate, key):
        self.certificate = certificate
        self.key = key

    def put(self, certificate, key):
        """Takes the place of the files of another."""
        for source, target in ((self.key, key), (self.certificate, certificate)):
            new = target.with_suffix(".new")
            new.write_bytes(source.read_bytes())
            new.chmod(0o600)
            new.rename(target)


class Authority:
    _numbers = itertools.count()

    def __init__(self, directory):
        self.number = next(self._numbers)
        self.directory = directory
        self.ca = directory / f"ca{self.number}.crt"
        self.key = directory / f"ca{self.number}.key"
        self._count = itertools.count()
        self._openssl("req", "-x509", *self._new_key("ec"), "-keyout", self.key, "-out", self.ca,
                      "-days", "3650", "-subj", f"/CN=authority{self.number}")

    def sign(self, names, days=365, kind="ec", subject="/CN=leaf"):
        """A certificate for names like `DNS:a,IP:127.0.0.1`; a negative number of days has expired."""
        stem = self.directory / f"leaf{self.number}-{next(self._count)}"
        pair = Pair(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        request, extensions = stem.with_suffix(".csr"), stem.with_suffix(".ext")
        self._openssl("req", *self._new_key(kind), "-keyout", pair.key, "-out", request,
                      "-subj", subject)
        extensions.write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
        self._openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.key,
                      "-CAcreateserial", "-days", days, "-extfile", extensions,
                      "-out", pair.certificate)
        pair.key.chmod(0o600)
        return pair

    @staticmethod
    def _new_key(kind):
        if kind == "ec":
            return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        return ["-newkey", "rsa:2048", "-nodes"]

    def _openssl(self, *words):
        done = subprocess.run(["openssl", *map(str, words)], cwd=self.directory, capture_output=True,
                              text=True)
        assert done.returncode == 0, done.stderr
