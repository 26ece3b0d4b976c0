"""Routes by the file: how they are read, explained, compared and changed."""

import json
import random
import socket
import subprocess

from harness import CASHEW, HOST, server_lines, wait_until
from test_route import route as explain, routes as explained
from test_routes import backend, route

TREE = """{prefix: {
  '': {keys: {exact: {banner: c}}, else: {migrate: {from: a, to: b, share: 30%}}},
  'u:': {all_sync: [a, c]},
  'u:x:': {operation: {read: a, write: b}},
  's:': {strip: true, to: b},
  'r:': {rewrite: 'n:', to: {failover: [c, a]}},
  'w:': {shadow: {to: a, shadow: c, share: 50%}},
  'k:': {key_split: {to: b, copies: 3}}}}"""


def pools_of(place, names="abc", servers=1, **options):
    made = {name: [place.redis() for _ in range(servers)] for name in names}
    pools = {name: backend(of, **options) for name, of in made.items()}
    return made, pools


def flat(tree):
    return " ".join(tree.split())


def keys_on(server):
    return {key.decode() for key in server.call("KEYS", "*")}


def leaves(step):
    if "at" in step:
        return [step]
    return [leaf for child in step.get("children", []) for leaf in leaves(child)]


def test_every_key_is_on_the_servers_that_are_named(place):
    servers, pools = pools_of(place, servers=2)
    gateway = place.cashew({"alpha": route(flat(TREE)), **pools}, {"worker_processes": 1})
    by_address = {f"{HOST}:{server.port}": server for of in servers.values() for server in of}
    seeded = random.Random(7)
    starts = ["", "u:", "u:x:", "s:", "r:", "w:", "k:", "u"]
    keys = ["banner"] + [f"{seeded.choice(starts)}{seeded.getrandbits(64):x}" for _ in range(10_000)]
    with gateway.connect() as conn:
        for at in range(0, len(keys), 100):
            for key in keys[at:at + 100]:
                conn.send(f"*3\r\n$3\r\nSET\r\n${len(key)}\r\n{key}\r\n$1\r\nv\r\n".encode())
            assert {conn.reply() for _ in keys[at:at + 100]} == {"OK"}
    found = []
    for at in range(0, len(keys), 1000):
        text = "".join(f"{key}\n" for key in keys[at:at + 1000])
        found += explained(gateway, "--command", "SET", "-", stdin=text)
    assert [it["key"] for it in found] == keys
    expected = {address: set() for address in by_address}
    for it in found:
        assert it["operations"] == ["write"]
        for leaf in leaves(it["tree"]):
            if not leaf.get("when", "").startswith(("if", "after")):
                expected[leaf["at"]["server"]["address"]].add(leaf["key"])
    # Nobody waits for a shadow.
    wait_until(lambda: all(keys_on(by_address[it]) == expected[it] for it in by_address),
               "every key is where it should be, and nowhere else")
    assert all(expected.values())
    # What reads has another way.
    [it] = explained(gateway, "--command", "GET", "u:x:1")
    assert [leaf["at"]["pool"] for leaf in leaves(it["tree"])] == ["a"]


def test_what_would_be_if_a_server_were_down(place):
    servers, pools = pools_of(place, "ab")
    tree = "{prefix: {'f:': {failover: [a, b]}, 's:': {all_sync: [a, b]}, 'x:': {all_fastest: [a, b]}}}"
    gateway = place.cashew({"alpha": route(tree), **pools}, {"worker_processes": 1})
    assert gateway.call("SET", "f:1", "v") == "OK"
    down = f"{HOST}:{servers['a'][0].port}=down"

    def outcome(key, *arguments):
        [it] = explained(gateway, *arguments, "--command", "GET", key)
        return it["outcome"]

    assert outcome("f:1") == {"answered": {"by": ["a"], "instead_of": []}}
    assert outcome("f:1", "--as-if", down) == {"answered": {"by": ["b"], "instead_of": ["a"]}}
    assert outcome("s:1", "--as-if", down) == {"fails": {"because_of": ["a"]}}
    assert outcome("x:1", "--as-if", down) == {"answered": {"by": ["b"], "instead_of": []}}
    assert outcome("none") == "no_route"
    # It is what happens, and what a running instance says without being asked.
    servers["a"][0].stop()
    wait_until(lambda: gateway.call("GET", "f:1") is None, "another pool answers")
    wait_until(lambda: outcome("f:1")["answered"]["by"] == ["b"], "it is known to be down")
    with gateway.connect() as conn:
        assert "Connection refused" in conn.error("GET", "s:1")
    text = explain(gateway, "--command", "GET", "f:1").stdout
    lines = [line.strip() for line in text.splitlines()]
    port_a, port_b = (servers[name][0].port for name in "ab")
    assert lines[0] == 'route alpha, key "f:1", read'
    assert lines[1] == 'prefix: prefix "f:"' and lines[2] == "failover"
    assert lines[3].startswith(f"pool a: {HOST}:{port_a}, out, "), text
    assert lines[4].startswith(f"pool b, if that fails: {HOST}:{port_b}, well, "), text
    assert lines[5] == "answered by b, since a is down"


def test_what_it_does_not_know_it_says(place):
    _, pools = pools_of(place, "ab")
    gateway = place.cashew({"alpha": route("{all_sync: [a, b]}"), **pools}, {"worker_processes": 1})
    for arguments, why in [
        (["--listener", "beta", "k"], 'there is no pool "beta"; there are a, b, alpha'),
        (["--command", "GOT", "k"], "--command GOT: pool 'alpha' has no such command"),
        (["--as-if", "x=down", "k"], 'there is no server "x"'),
    ]:
        result = explain(gateway, *arguments)
        assert result.returncode == 1 and why in result.stderr, result.stderr
    # A pool can be asked for that nobody connects to.
    assert [it["pool"] for it in explained(gateway, "--listener", "a", "k")] == ["a"]
    # What is done with the key makes no difference here.
    [it] = explained(gateway, "k")
    assert it["operations"] == ["read", "write", "delete"]


def test_what_would_move_is_told_before_it_does(place):
    servers, pools = pools_of(place)
    before = {"alpha": route("{prefix: {'u:': a, 'c:': c, '': b}}"), **pools}
    gateway = place.cashew(before, {"worker_processes": 1})
    old = gateway.config_path.read_text()
    gateway.configure({"alpha": route("{prefix: {'u:': {migrate: {from: a, to: c, share: 25%}}, 'c:': c, '': b}}"),
                       **pools})
    other = gateway.config_path.with_suffix(".other")
    other.write_text(gateway.config_path.read_text())
    told = gateway.order("reload", "--dry-run").stdout
    assert "route 'alpha': prefix \"u:\": migrate, share 25% [from: a, to: c] instead of a" in told, told
    share = [line for line in told.splitlines() if "keys \"u:\": about " in line]
    assert len(share) == 1 and 22 < float(share[0].split("about ")[1].split("%")[0]) < 28, told
    gateway.config_path.write_text(old)
    keys = [f"u:{n}" for n in range(400)]
    result = explained(gateway, "--compare", other, "--command", "GET", *keys, "other")
    assert any("migrate, share 25%" in line for line in result["changes"])
    moves = {it["key"]: it for it in result["keys"]}
    assert not moves["other"]["moves"] and 60 < sum(it["moves"] for it in result["keys"]) < 140
    for key in keys:
        assert gateway.call("SET", key, "v") == "OK"
    gateway.config_path.write_text(other.read_text())
    gateway.reload()
    for key in keys:
        gateway.call("SET", key, "w")
    there = keys_on(servers["c"][0])
    assert there == {key for key in keys if moves[key]["moves"]}
    text = explain(gateway, "--compare", gateway.config_path, "other").stdout
    assert "nothing changes about where keys go" in text and "stays at b" in text


def test_a_list_of_keys_is_read_at_a_reload(place, tmp_path):
    servers, pools = pools_of(place, "ab")
    path = tmp_path / "keys"
    path.write_text("# hot\nbanner a\ntwo words a\n")
    gateway = place.cashew({"alpha": route(f"{{keys: {{file: {path}}}, else: b}}"), **pools},
                           {"worker_processes": 1})
    for key in ("banner", "two words", "other"):
        assert gateway.call("SET", key, "1") == "OK"
    assert keys_on(servers["a"][0]) == {"banner", "two words"}
    path.write_text("other a\n")
    assert "1 listed key added" in gateway.reload()
    assert gateway.call("GET", "banner") is None and gateway.call("GET", "other") is None
    path.write_text("other a\nnonsense\nbanner c\n")
    why = gateway.refused_reload()
    assert f"{path}:2: this is no key with a target" in why, why
    assert f'{path}:3: there is no pool or node "c"' in why, why
    assert gateway.call("SET", "other", "2") == "OK"
    assert "other" in keys_on(servers["a"][0])


def test_listen_comes_and_goes(place):
    servers, pools = pools_of(place, "ab")
    shut = {"alpha": route("{failover: [a, b]}"), **pools}
    gateway = place.cashew(shut, {"worker_processes": 2})
    assert gateway.call("SET", "k", "1") == "OK"
    for _ in range(2):
        listening = {name: {"listen": None, **options} for name, options in gateway.pools.items()
                     if name not in ("a", "alpha")}
        own = {key: value for key, value in gateway.pools["a"].items() if key != "listen"}
        gateway.configure({"alpha": gateway.pools["alpha"], "a": own, **listening})
        address = gateway.addresses["a"]
        assert "pool 'a': listens on" in gateway.reload()
        with gateway.connect("a") as conn, gateway.connect() as by_route:
            assert conn.call("GET", "k") == b"1"
            gateway.configure({"alpha": gateway.pools["alpha"], "a": {"listen": None, **own}, **listening})
            assert "pool 'a': does not listen instead of" in gateway.reload()
            wait_until(lambda: refuses(address), "nobody listens there")
            assert by_route.call("GET", "k") == b"1"
            # Who is connected stays.
            assert conn.call("GET", "k") == b"1"
        assert gateway.call("GET", "k") == b"1"


def refuses(address):
    with socket.socket() as probe:
        return probe.connect_ex((HOST, address)) != 0


def test_routes_are_shown(place):
    _, pools = pools_of(place, "ab")
    gateway = place.cashew({"alpha": route("{failover: [a, b], ttl: 60s}"), **pools},
                           {"worker_processes": 1, "ready_needs_primaries": "true"})
    status = gateway.order("status").stdout
    rows = {line.split()[0]: line for line in status.split("POOL")[1].splitlines()[1:] if line.strip()}
    assert "those of a, b" in rows["alpha"] and " nowhere " in rows["a"], status
    [of_route] = [it for it in json.loads(gateway.order("status", "--json").stdout)["pools"]
                  if it["name"] == "alpha"]
    assert of_route["leads_to"] == ["a", "b"] and of_route["servers"] == 0
    assert set(gateway.stats()) >= {"alpha", "a", "b"}
    told = subprocess.run([CASHEW, "-t", "-c", gateway.config_path], capture_output=True, text=True,
                          timeout=30)
    assert told.returncode == 0
    lines = told.stderr.splitlines()
    at = lines.index(f"route alpha, at {HOST}:{gateway.addresses['alpha']}")
    assert lines[at + 1:at + 4] == ["  failover, ttl 1m", "    pool a", "    pool b"]


def test_a_memcached_route_is_explained(place):
    servers = {name: place.memcached() for name in "ab"}
    pools = {name: backend([server], redis=False) for name, server in servers.items()}
    gateway = place.cashew({"alpha": route("{operation: {read: a, write: b}}", redis=False), **pools},
                           {"worker_processes": 1})
    ways = explained(gateway, "k")
    assert [(it["operations"], leaves(it["tree"])[0]["at"]["pool"]) for it in ways] == [
        (["read"], "a"), (["write", "delete"], "b")]
    [it] = explained(gateway, "--command", "mg", "k")
    assert it["operations"] == ["read"]


def test_a_route_may_stand_before_its_pools_when_the_configuration_changes(place):
    # Pools stand by the length of their names, then by these.
    servers = {name: place.redis() for name in ("users", "spare")}
    pools = {name: backend([server]) for name, server in servers.items()}
    gateway = place.cashew({"r": route("{failover: [users, spare]}"), **pools}, {"worker_processes": 1})
    with gateway.connect() as conn:
        assert conn.call("SET", "k", "1") == "OK"
        gateway.configure({"r": route("{failover: [spare, users]}", listen=gateway.pools["r"]["listen"]), **pools})
        gateway.reload()
        assert conn.call("SET", "k", "2") == "OK"
        assert servers["spare"].call("GET", "k") == b"2"
    assert "panicked" not in gateway.log()


def test_shares_are_of_the_key_as_the_client_has_it(place):
    servers = {name: place.redis() for name in "ab"}
    pools = {name: backend([server]) for name, server in servers.items()}
    tree = "{prefix: {'m:': {strip: true, to: {migrate: {from: a, to: b, share: 50%%%s}}}}}"
    gateway = place.cashew({"alpha": route(tree % ""), **pools}, {"worker_processes": 1})
    keys = [f"m:{n}" for n in range(100)]
    for key in keys:
        assert gateway.call("SET", key, "v") == "OK"
    there = [{key for key in keys if key[2:] in keys_on(servers[name])} for name in "ab"]
    said = explained(gateway, "--command", "SET", *keys)
    by_pool = [{it["key"] for it in said if leaves(it["tree"])[0]["at"]["pool"] == name} for name in "ab"]
    assert there == by_pool
    # No key moves because it is written to both.
    gateway.configure({"alpha": route(tree % ", read_other: true"), **pools})
    gateway.reload()
    for server in servers.values():
        server.call("FLUSHALL")
    for key in keys:
        assert gateway.call("SET", key, "v") == "OK"
    assert [{key for key in keys if key[2:] in keys_on(servers[name])} for name in "ab"] == there
