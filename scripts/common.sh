# What scripts/demo, scripts/test and scripts/check share: where things are, and how missing ones are installed.
# To be sourced from the project's root.

say() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }
fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

PATH=$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin:/usr/local/go/bin
export PATH

# Installs packages of the distribution by the commands that are missing:
# install COMMAND=PACKAGE...
install() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    install_packages "${missing[@]}"
}

install_packages() {
    (($# > 0)) || return 0
    command -v apt-get >/dev/null ||
        fail "this needs $*, and can install packages only on Debian and Ubuntu"
    local as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || fail "this needs $*; as root: apt-get install $*"
        as_root=(sudo)
    fi
    say "Installing $*"
    "${as_root[@]}" apt-get update -qq || echo 'The package lists could not be renewed; going on.'
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
        fail "apt-get could not install $*"
}

# Whether version $1 is at least version $2.
at_least() { [[ $(printf '%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

rust_version() { cargo --version 2>/dev/null | cut -d ' ' -f 2; }

# A Rust that can build Cashew; a newer one comes from rustup, which this may install.
install_rust() {
    local wanted
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    at_least "$(rust_version)" "$wanted" && return
    if ! command -v rustup >/dev/null && apt-cache show rustup >/dev/null 2>&1; then
        install_packages rustup
    fi
    command -v rustup >/dev/null ||
        fail "Cashew needs Rust $wanted or newer (here: $(rust_version || echo none)), which this" \
            "distribution does not have. Install rustup as the Rust project tells, and run" \
            "this again."
    say "Installing the stable Rust with rustup"
    rustup toolchain install stable --profile minimal
    at_least "$(rust_version)" "$wanted" || rustup default stable
    at_least "$(rust_version)" "$wanted" || fail "Rust $wanted or newer is needed"
}

# Python 3.11 or newer that can make environments, which Debian has in a package of its own: $python.
find_python() {
    python=$(for name in python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$name" && break
    done) || fail "Python 3.11 or newer is needed"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
}

# The environment of the Python tests: $environment. Made anew when what it needs has changed.
python_environment() {
    environment=tests/python/.venv
    cmp -s tests/python/requirements.txt "$environment/installed.txt" && return
    [[ -n ${python:-} ]] || find_python
    rm -rf "$environment"
    "$python" -m venv "$environment"
    "$environment/bin/pip" install --quiet --requirement tests/python/requirements.txt
    cp tests/python/requirements.txt "$environment/installed.txt"
}

# Newer servers than the distribution's, for tests of the crates: in CASHEW_REDIS_SERVERS those of the Python
# packages, in CASHEW_MEMCACHED_SERVERS the newest memcached of the archive, unless they are set. Without
# a network the tests do with what is there.
servers() {
    python_environment
    if [[ -z ${CASHEW_REDIS_SERVERS+set} ]]; then
        CASHEW_REDIS_SERVERS=$(PYTHONPATH=tests/python "$environment/bin/python" -c \
            'import harness; print(":".join(map(str, harness.newer_servers())))')
    fi
    if [[ -z ${CASHEW_MEMCACHED_SERVERS+set} ]]; then
        [[ -x target/memcached-newest/memcached ]] || install make=make event_rpcgen.py=libevent-dev
        CASHEW_MEMCACHED_SERVERS=$("$environment/bin/python" tests/memcached/newest.py) ||
            echo 'The newest memcached is not to be had: going on without it.' >&2
    fi
    export CASHEW_REDIS_SERVERS CASHEW_MEMCACHED_SERVERS
}

# What all tests need.
install_tools() {
    install redis-server=redis-server redis-cli=redis-tools memcached=memcached etcd=etcd-server \
        nutcracker=nutcracker curl=curl nc=netcat-openbsd cc=gcc c++=g++ python3=python3 go=golang-go \
        valgrind=valgrind tclsh=tcl javac=default-jdk-headless mvn=maven node=nodejs npm=npm \
        perl=perl memccapable=libmemcached-tools tmux=tmux keepalived=keepalived ip=iproute2 nft=nftables
    install_rust

    find_python

    local go_wanted go_version node_wanted node_version
    go_wanted=$(sed -n 's/^go //p' tests/clients/go/go.mod)
    go_version=$(go env GOVERSION)
    at_least "${go_version#go}" "$go_wanted" ||
        fail "Go $go_wanted or newer is needed for the Go clients (here: $go_version)"
    node_wanted=$(sed -n 's/.*"node": ">=\([0-9.]*\)".*/\1/p' tests/clients/node/package.json)
    node_version=$(node --version)
    at_least "${node_version#v}" "$node_wanted" ||
        fail "Node $node_wanted or newer is needed for the Node clients (here: $node_version)"
}

# Builds and fetches what the end-to-end tests need.
prepare_pytest() {
    cargo build --workspace --locked
    CASHEW_BUMPED=$(scripts/bumped)
    CASHEW_PROMTOOL=$(scripts/promtool)
    export CASHEW_BUMPED CASHEW_PROMTOOL
    python_environment
}

# The end-to-end tests that the options select.
pytest() {
    PYTHONPATH=tests/python "$environment/bin/python" -m pytest -p failed_tests \
        -c tests/python/pytest.ini --rootdir tests/python "$@"
}
