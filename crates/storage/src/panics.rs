//! Panics of the storage engine, which are errors to everybody else.
//!
//! sled panics on some damage of its files, and when it closes a database whose disk fails. Such a panic is
//! caught where sled is called. A program whose panic hook ends the process would not come that far: it asks
//! [`panic_is_caught`] first.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// How many calls of `caught` this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether a panic of this thread would be caught here and become a [`StorageError`](crate::StorageError) or
/// [`OpenError`](crate::OpenError). For panic hooks.
#[must_use]
pub fn panic_is_caught() -> bool {
    DEPTH.get() > 0
}

/// Runs a call into the engine; what a panic said is the error.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    DEPTH.set(DEPTH.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    DEPTH.set(DEPTH.get() - 1);
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("panic without a message")
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_the_engine_is_known_to_be_caught() {
        assert!(!panic_is_caught());
        assert_eq!(caught(panic_is_caught), Ok(true));
        assert_eq!(
            caught(|| panic!("page {} is gone", 3)),
            Err::<(), _>("page 3 is gone".to_owned())
        );
        assert!(!panic_is_caught());
    }
}
