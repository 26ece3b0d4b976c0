# What the scripts of this folder share. To be sourced from the project's root, after scripts/common.sh.

# Where the tools and what they make are.
packaging=$PWD/target/packaging

# The time that everything in a package has: that of the last commit, unless SOURCE_DATE_EPOCH says another.
source_date() {
    if [[ -z ${SOURCE_DATE_EPOCH:-} ]]; then
        SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) || fail "no commit has a time: set SOURCE_DATE_EPOCH"
    fi
    export SOURCE_DATE_EPOCH
}

# The version of Cargo.toml.
workspace_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml; }

# The path of a tool that packaging/tools/go.mod pins, built once: go_tool NAME IMPORT-PATH.
go_tool() {
    local program=$packaging/tools/$1
    if [[ ! $program -nt packaging/tools/go.sum ]]; then
        install go=golang-go >&2
        mkdir -p "$packaging/tools"
        (cd packaging/tools && go build -o "$program" "$2") >&2
    fi
    printf '%s\n' "$program"
}

nfpm() { go_tool nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm; }
helm() { go_tool helm helm.sh/helm/v3/cmd/helm; }
# Reads a ServiceMonitor strictly.
strict() { go_tool strict ./strict; }

# The path of cargo-cyclonedx, built once.
cyclonedx() {
    local version=0.5.9 root=$packaging/tools/cyclonedx
    [[ -x $root/bin/cargo-cyclonedx && -e $root/$version ]] || {
        cargo install --quiet --locked --root "$root" "cargo-cyclonedx@$version" >&2
        touch "$root/$version"
    }
    printf '%s\n' "$root/bin/cargo-cyclonedx"
}
