"""What a scanner of TLS looks at: every version, every cipher, and what was made use of in attacks."""

import re
import socket
import ssl
import subprocess

import pytest

from certificates import Authority
from harness import HOST, PATIENCE, free_port, server_lines

#: All that may be spoken in version 1.2: forward secret and authenticated.
GOOD = {
    "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-RSA-AES128-GCM-SHA256",
}
STRONG = {it for it in GOOD if "AES128" not in it}


class Listener:
    def __init__(self, place, ciphers):
        authority = Authority(place.directory)
        pairs = [authority.sign(f"DNS:localhost,IP:{HOST}", kind=kind) for kind in ("ec", "rsa")]
        certificates, keys = ("[" + ", ".join(str(getattr(it, of)) for it in pairs) + "]" for of in ("certificate", "key"))
        self.ca, self.port = authority.ca, free_port()
        tls = f"{{certificate: {certificates}, key: {keys}, ciphers: {ciphers}}}"
        pool = {"redis": "true", "servers": server_lines([place.redis()]), "tls": tls, "tls_listen": f"{HOST}:{self.port}"}
        self.good = GOOD if ciphers == "default" else STRONG
        place.cashew({"alpha": pool}, {"worker_processes": 1}).wait_serving()

    def context(self):
        made = ssl.create_default_context(cafile=str(self.ca))
        made.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
        made.minimum_version = ssl.TLSVersion.TLSv1
        return made

    def connect(self, made):
        """Version and cipher, or None."""
        with socket.create_connection((HOST, self.port), PATIENCE) as raw:
            try:
                with made.wrap_socket(raw, server_hostname="localhost") as conn:
                    return conn.version(), conn.cipher()[0]
            except (ssl.SSLError, OSError):
                return None

    def scan(self, *words, said=""):
        command = ["openssl", "s_client", "-connect", f"{HOST}:{self.port}", "-CAfile", str(self.ca), *words]
        done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout + done.stderr


@pytest.fixture(scope="module", params=["default", "strong"])
def listener(request, module_place):
    return Listener(module_place, request.param)


def test_every_cipher_of_version_1_2(listener):
    names = subprocess.run(["openssl", "ciphers", "-tls1_2", "ALL:COMPLEMENTOFALL:@SECLEVEL=0"],
                           capture_output=True, text=True, check=True).stdout.strip().split(":")
    assert len(names) > 50 and GOOD < set(names)
    spoken = set()
    for name in names:
        made = listener.context()
        made.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            made.set_ciphers(f"{name}:@SECLEVEL=0")
        except ssl.SSLError:
            continue
        if found := listener.connect(made):
            spoken.add(found[1])
    assert spoken == listener.good


@pytest.mark.parametrize("cipher", ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256",
                                    "TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"])
def test_every_cipher_of_version_1_3(listener, cipher):
    said = listener.scan("-tls1_3", "-ciphersuites", cipher)
    is_good = "CCM" not in cipher and (listener.good is GOOD or "128" not in cipher)
    assert (f"Cipher is {cipher}" in said) == is_good, said


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_old_versions(listener, version):
    made = listener.context()
    made.maximum_version = ssl.TLSVersion[version]
    assert listener.connect(made) is None
    made.maximum_version = ssl.TLSVersion.TLSv1_2
    assert listener.connect(made)[0] == "TLSv1.2"


def test_the_hellos_of_older_protocols(listener):
    """SSL 2 and 3, which no library of today would send."""
    old = bytes.fromhex("802e0100020015000000100100800200800600400400800500800300800700c0") + b"\0" * 20
    ssl3 = bytes.fromhex("160300002d0100002903005a5a5a5a") + b"\x5a" * 28 + bytes.fromhex("000002000a0100")
    for hello in (old, ssl3):
        with socket.create_connection((HOST, listener.port), PATIENCE) as conn:
            conn.sendall(hello)
            answer = b""
            try:
                while piece := conn.recv(4096):
                    answer += piece
            except ConnectionResetError:
                pass
            # An alert, or nothing: no handshake goes on.
            assert not answer or answer[0] == 0x15, answer


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_no_compression(listener, version):
    said = listener.scan(version, "-comp")
    assert "Compression: NONE" in said and "Verify return code: 0 (ok)" in said, said


def test_renegotiation(listener):
    said = listener.scan("-tls1_2", said="R\n")
    assert "Secure Renegotiation IS supported" in said
    before, _, after = said.partition("RENEGOTIATING")
    assert "Verify return code: 0 (ok)" in before and re.search("alert|error", after), after
    # A client cannot do without the extension that makes it safe, and then begin again.
    assert "Cipher is (NONE)" in listener.scan("-tls1_2", "-legacy_renegotiation", "-cipher", "AES128-SHA:@SECLEVEL=0")


def test_groups(listener):
    for group in ("X25519", "P-256", "P-384"):
        assert "Verify return code: 0 (ok)" in listener.scan("-groups", group), group
    for group in ("secp256k1", "ffdhe2048", "sect571r1"):
        assert "Cipher is (NONE)" in listener.scan("-groups", group), group


def test_signatures(listener):
    for name in ("RSA+SHA1", "ECDSA+SHA1", "RSA+MD5"):
        said = listener.scan("-tls1_2", "-sigalgs", name, "-cipher", "ALL:@SECLEVEL=0")
        assert "Cipher is ECDHE" not in said, name


def test_falling_back(listener):
    """Who could speak a newer version and says that it has fallen back gets no older one, or the newest."""
    said = listener.scan("-tls1_2", "-fallback_scsv")
    assert "inappropriate fallback" in said.lower() or "Protocol  : TLSv1.2" not in said or "Verify return code: 0" in said
    assert "TLSv1.3" in listener.scan()


def test_heartbeats(listener):
    """An echo of more than was sent is no extension here: Heartbleed."""
    assert "heartbeat" not in listener.scan("-tlsextdebug").lower()
    made = listener.context()
    raw = socket.create_connection((HOST, listener.port), PATIENCE)
    conn = made.wrap_socket(raw, server_hostname="localhost")
    with socket.socket(fileno=conn.detach()) as below:
        below.settimeout(PATIENCE)
        below.sendall(bytes.fromhex("1803030003014000"))
        got = b""
        try:
            while piece := below.recv(65536):
                got += piece
        except OSError:
            pass
        assert len(got) < 4096
