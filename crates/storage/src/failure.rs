//! The first fatal error of a store: kept for good, and told to whoever asked.

use parking_lot::Mutex;

use crate::error::StorageError;

type Observer = Box<dyn FnOnce(&StorageError) + Send>;

/// Set once. Everything that writes looks here first.
#[derive(Default)]
pub(crate) struct Failure {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    error: Option<StorageError>,
    observers: Vec<Observer>,
}

impl Failure {
    pub(crate) fn get(&self) -> Option<StorageError> {
        self.state.lock().error.clone()
    }

    pub(crate) fn check(&self) -> Result<(), StorageError> {
        self.get().map_or(Ok(()), Err)
    }

    /// Keeps `error` if it is the first, and calls the observers.
    pub(crate) fn set(&self, error: &StorageError) {
        let observers = {
            let mut state = self.state.lock();
            if state.error.is_some() {
                return;
            }
            state.error = Some(error.clone());
            std::mem::take(&mut state.observers)
        };
        tracing::error!(%error, "storage failed; this node must stop");
        for observer in observers {
            observer(error);
        }
    }

    /// Calls `observer` when the store fails; at once if it has.
    pub(crate) fn observe(&self, observer: Observer) {
        let error = {
            let mut state = self.state.lock();
            match &state.error {
                Some(error) => error.clone(),
                None => {
                    state.observers.push(observer);
                    return;
                }
            }
        };
        observer(&error);
    }

    /// Keeps the error of a write, if it is one.
    pub(crate) fn note<T>(&self, result: Result<T, StorageError>) -> Result<T, StorageError> {
        if let Err(error) = &result {
            self.set(error);
        }
        result
    }
}
