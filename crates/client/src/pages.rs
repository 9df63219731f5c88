//! Listings that come in pages.

use futures_util::stream;
use futures_util::{Stream, StreamExt as _};

use crate::error::Result;

/// The items of all pages, each page fetched when the one before is read.
/// `fetch` gets the place where a page begins, and returns the place where the
/// next does; None = there is none. Ends after the first error.
pub(crate) fn pages<P, T, F, A>(first: P, fetch: F) -> impl Stream<Item = Result<T>> + Send + Unpin + 'static
where
    P: Send + 'static,
    T: Send + 'static,
    F: Fn(P) -> A + Send + 'static,
    A: Future<Output = Result<(Vec<T>, Option<P>)>> + Send + 'static,
{
    let pages = stream::unfold((Some(first), fetch), |(place, fetch)| async move {
        let (items, next) = match fetch(place?).await {
            Ok((items, next)) => (items.into_iter().map(Ok).collect(), next),
            Err(error) => (vec![Err(error)], None),
        };
        Some((items, (next, fetch)))
    });
    Box::pin(pages.flat_map(stream::iter::<Vec<Result<T>>>))
}
