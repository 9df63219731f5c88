//! Runs one path of the core, for `.ci/instructions`, which counts the instructions of it under callgrind.
//!
//! ```text
//! instructions                  lists the paths, each with its operations per round
//! instructions PATH ROUNDS      runs one
//! ```

#![allow(clippy::print_stdout, reason = "it talks to a script")]

use std::hint::black_box;

use crate::paths::{PATHS, Round};

#[path = "../benches/paths/mod.rs"]
mod paths;

/// Fewer than in the bench: callgrind is fifty times slower.
const BACKLOG: usize = 100_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        for path in &PATHS {
            println!("{} {}", path.name, path.operations);
        }
        return;
    };
    let rounds: u64 = arguments
        .next()
        .and_then(|rounds| rounds.parse().ok())
        .expect("a number of rounds");
    let path = PATHS
        .iter()
        .find(|path| path.name == name)
        .unwrap_or_else(|| panic!("there is no path {name}"));
    let mut round = path.begin(BACKLOG);
    // What happens once, such as growing a buffer, is not counted.
    round.ready();
    round.run();
    round.check();
    for _ in 0..rounds {
        round.ready();
        counted_by_callgrind(&mut *round);
        round.check();
    }
}

/// callgrind counts while this is on the stack: it goes by the name. What comes behind the call keeps it from
/// becoming a jump.
#[inline(never)]
fn counted_by_callgrind(round: &mut dyn Round) {
    round.run();
    black_box(round);
}
