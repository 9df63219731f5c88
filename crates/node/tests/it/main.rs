//! Nodes of one process on loopback, with real stores and real connections,
//! asked through their [`Broker`](quorate_node::Broker).

mod browse;
mod journal;
mod metrics;
mod nodes;
mod operate;
mod queues;
mod routing;
