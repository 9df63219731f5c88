//! The report of a run: one HTML file that tells a stranger what happened.
//!
//! [`html`] makes the page of a [`Run`]. The file needs nothing else: no network, no library; its style and a
//! little script are inside. Without JavaScript everything but the lives of messages is there.
//!
//! From top to bottom the page answers what one asks in turn: did it hold, what was done to the cluster, was
//! that enough to prove something, which promises were looked at, what happened when, and what happened to *this*
//! message. Colours are never alone: what they tell is also told by a shape, a pattern or a letter.
//!
//! However long a run was, the page stays below about five megabytes: drawings are sums over parts of the time,
//! and of the lives of messages those go in first that somebody may ask for.
//!
//! | module | what it draws or tells |
//! | --- | --- |
//! | [`run`] | what a page is made of |
//! | `story` | from what was recorded to that ([`of`]) |
//! | `summary`, `words` | verdict, faults, what was seen, in plain words |
//! | `promises`, `evidence` | the promises, whether they held, and what shows that they did not |
//! | `axis`, `bands` | the time that all charts have in common, and the faults across them |
//! | `lanes` | a lane for each client and node |
//! | `plots` | latency, rate |
//! | `fate`, `scatter` | what became of each publish |
//! | `lives` | what the page carries of each message, for its script |
//! | `page`, `escape` | the frame |

#![forbid(unsafe_code)]

mod axis;
mod bands;
mod escape;
mod evidence;
mod fate;
mod lanes;
mod lives;
mod page;
mod plots;
mod promises;
pub mod run;
mod scatter;
mod story;
mod summary;
mod words;

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;

pub use run::Run;
pub use story::of;

/// The page of a run.
#[must_use]
pub fn html(run: &Run) -> String {
    page::page(run)
}
