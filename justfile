# What people type here. `just` lists it, `just verify` is what CI checks first.

_default:
    @just --list --unsorted

# Reads only: format, lints, documentation, and the architecture test
verify:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
    cargo test -p quorate-tests --test architecture

# Changes what a machine can change
fix:
    cargo fmt --all
    cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# Three nodes on this machine until Ctrl-C
dev *ARGS:
    cargo run --release -- dev {{ARGS}}

# Three nodes, 20,000 messages, the leader is killed half-way: nothing may be lost
demo *ARGS:
    cargo run --release -- demo {{ARGS}}

# All tests, as in the README
test *ARGS:
    cargo test --workspace {{ARGS}}

# Random logs against the model and what is promised: many more of them, in release
layer-0 CASES="20000":
    PROPTEST_CASES={{CASES}} cargo test --release -p quorate-core --test properties

# Faults that are known to be there: each must be found, by what it breaks
mutants *ARGS:
    cargo run --release -p jepsen-lite -- mutants {{ARGS}}

# Simulations and processes in turn, under faults, until a promise is broken
soak TIME="20m":
    cargo run --release -p jepsen-lite -- soak --for {{TIME}}

# Load on three nodes of its own, or on a cluster that runs (`--endpoint`)
bench *ARGS:
    cargo run --release -- bench {{ARGS}}

# Times of what the core does most, per message; `--save-baseline NAME`, then `--baseline NAME`
bench-core *ARGS:
    cargo bench -p quorate-core --bench hot_paths -- {{ARGS}}

# Times of group commits of the log, on this disk
bench-storage *ARGS:
    cargo bench -p quorate-storage --bench append -- {{ARGS}}

# Instructions of the core's paths against what was written down (needs valgrind)
instructions *ARGS:
    .ci/instructions {{ARGS}}

# Writes down what is counted now; WHY becomes the note of what has grown by more than 10 %
accept-instructions WHY:
    .ci/instructions --accept {{quote(WHY)}}

# What survives when everything not fsynced is forgotten, in release
power-loss *ARGS:
    cargo test --release -p quorate-storage --test power_loss {{ARGS}}

# openraft's own suite for logs and state machines, in release
storage-suite *ARGS:
    cargo test --release -p quorate-raft --test it suite {{ARGS}}

# Three containers, the leader's is killed, everything is counted
compose:
    docker compose -f deploy/compose.yaml up --build -d
    deploy/smoke.sh

# Licences, advisories, sources (needs `cargo install --locked cargo-deny`)
deny:
    cargo deny --locked check

# Everything that CI does, in its order
ci:
    bash .ci/run
