//! How long the core takes for what it does most, per message: see the table in `paths/mod.rs`.
//!
//! `cargo bench -p quorate-core --bench hot_paths`. Queues with a backlog have a million messages in it. To compare two
//! versions: `-- --save-baseline before` on one, `-- --baseline before` on the other, in turns, since machines have
//! moods.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it takes the time"
)]

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use crate::paths::{PATHS, Round};

mod paths;

const BACKLOG: usize = 1_000_000;

fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core");
    for path in &PATHS {
        group.throughput(Throughput::Elements(path.operations as u64));
        let mut state = None;
        group.bench_function(path.name, |bencher| {
            let round = state.get_or_insert_with(|| path.begin(BACKLOG));
            bencher.iter_custom(|rounds| spent(&mut **round, rounds));
        });
    }
    group.finish();
}

/// On the rounds, without what makes the state ready for them.
fn spent(round: &mut dyn Round, rounds: u64) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..rounds {
        round.ready();
        let begin = Instant::now();
        round.run();
        spent += begin.elapsed();
    }
    round.check();
    spent
}

criterion_group!(benches, all);
criterion_main!(benches);
