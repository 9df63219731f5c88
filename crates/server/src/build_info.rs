//! What this program is built from.

/// Shown by `quorate --version`.
pub(crate) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("QUORATE_COMMIT"),
    ", ",
    env!("QUORATE_TARGET"),
    ")"
);
