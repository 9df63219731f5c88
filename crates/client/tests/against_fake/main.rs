//! The client against scripted brokers in this process: redirects, lost
//! answers, frozen nodes, forgotten ids, broken streams.

mod calls;
mod consuming;
mod fake;
mod idempotence;
mod operating;
mod publishing;
mod routing;
mod tracing;
mod transacting;
