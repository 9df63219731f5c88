//! What is measured is what it is called after: every path of the benches does what it should, round after round.

#[allow(dead_code, reason = "nothing is measured here")]
#[path = "../benches/paths/mod.rs"]
mod paths;

#[test]
fn every_path_does_what_it_is_called_after() {
    for path in &paths::PATHS {
        let mut round = path.begin(1_000);
        for _ in 0..3 {
            round.ready();
            round.run();
            round.check();
        }
    }
}
