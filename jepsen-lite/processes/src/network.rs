//! The network of a cluster: a proxy from every node to every other, and from the clients to every node.
//!
//! A cut is a matter of *directions*. What goes from i to j goes on connections that i has dialled (requests)
//! and on those that j has dialled (answers), so the [`Link`] from i to j is shared by the proxies of both.
//! The listeners are all there from the start, also those of nodes that may come, so that nothing has to be
//! told to anybody when the cluster grows.
//!
//! Several faults may be there at a time. Each link behaves as all of them together say; undoing one leaves
//! the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jepsen_lite_core::schedule::Fault;
use quorate_test_cluster::{Ports, free_port};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::link::{Conduct, Link, Tally};
use crate::proxy::Proxy;

/// Most nodes that a cluster can ever have.
pub const NODES_MAX: usize = 9;

/// Where bytes come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The clients, all of them.
    Clients,
    /// A node, counted from 0.
    Node(usize),
}

/// All the proxies of a cluster; dropped, they hang up.
#[derive(Debug)]
pub struct Network {
    /// By where it leads from, and to.
    links: BTreeMap<(End, End), Arc<Link>>,
    /// By who dials, and whom.
    proxies: BTreeMap<(End, usize), Proxy>,
    faults: Vec<Active>,
    /// Nodes on whose ports nobody listens.
    down: BTreeSet<usize>,
}

/// A fault that lasts.
#[derive(Debug)]
struct Active {
    fault: Fault,
    nodes: Vec<usize>,
    directions: Vec<(End, End)>,
    conduct: Conduct,
    /// Nobody listens behind the proxies of these directions.
    refuses: bool,
    /// Undone, connections break instead of going on where they were.
    breaks: bool,
    before: Counted,
}

/// What the links and proxies of some directions have done.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    tally: Tally,
    broken: u64,
}

impl Network {
    /// Starts the proxies of nodes that will listen on these ports.
    ///
    /// # Errors
    ///
    /// When there are no free ports, or too many nodes.
    pub async fn start(nodes: &[Ports]) -> Result<Self> {
        if nodes.len() > NODES_MAX {
            bail!("{} nodes, but at most {NODES_MAX} can be", nodes.len());
        }
        let ends = (0..nodes.len()).map(End::Node).chain([End::Clients]);
        let pairs = ends
            .clone()
            .flat_map(|from| ends.clone().map(move |to| (from, to)))
            .filter(|(from, to)| from != to);
        let links: BTreeMap<_, Arc<Link>> = pairs.map(|pair| (pair, Arc::default())).collect();
        let mut proxies = BTreeMap::new();
        for &(from, to) in links.keys() {
            let End::Node(node) = to else { continue };
            let port = match from {
                End::Clients => nodes[node].client,
                End::Node(_) => nodes[node].peer,
            };
            let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let proxy = listen(target, &links[&(from, to)], &links[&(to, from)]).await?;
            proxies.insert((from, node), proxy);
        }
        Ok(Self {
            links,
            proxies,
            faults: Vec::new(),
            down: BTreeSet::new(),
        })
    }

    /// Where `from` dials the node, `host:port`.
    ///
    /// # Panics
    ///
    /// When there is no such pair.
    #[must_use]
    pub fn address(&self, from: End, node: usize) -> String {
        self.proxies[&(from, node)].address()
    }

    /// The link from one end to another.
    ///
    /// # Panics
    ///
    /// When there is no such pair.
    #[must_use]
    pub fn link(&self, from: End, to: End) -> &Link {
        &self.links[&(from, to)]
    }

    /// Nobody listens on the ports of a node: its proxies refuse, as its host would.
    pub fn node_is_down(&mut self, node: usize) {
        self.down.insert(node);
        self.arrange();
    }

    /// A node listens, or is about to.
    pub fn node_is_up(&mut self, node: usize) {
        self.down.remove(&node);
        self.arrange();
    }

    /// Does a fault of the network to nodes, of so many that there are. The seed decides how a cut ends, and
    /// whether it looks like a cable that is pulled or like a port that is closed. An error is the reason
    /// why it cannot be done; `None` says that this is no fault of a network.
    ///
    /// # Errors
    ///
    /// When it would do nothing, as cutting off all nodes from no others.
    pub fn inflict(
        &mut self,
        fault: &Fault,
        nodes: &[usize],
        node_count: usize,
        seed: u64,
    ) -> Option<Result<BTreeMap<String, u64>>> {
        if matches!(fault, Fault::Reset) {
            return Some(self.reset(nodes));
        }
        let directions = directions(fault, nodes, node_count)?;
        if directions.is_empty() {
            return Some(Err(anyhow::anyhow!(
                "there is nothing between these nodes to be changed"
            )));
        }
        let mut rng = StdRng::seed_from_u64(seed);
        let one_way = matches!(fault, Fault::Deaf | Fault::Mute);
        let cut = |conduct| Conduct {
            stalled: true,
            ..conduct
        };
        let none = Conduct::default();
        let (conduct, refuses, breaks) = match *fault {
            Fault::Delay { ms } => {
                let delay = Duration::from_millis(ms);
                (Conduct { delay, ..none }, false, false)
            }
            Fault::Throttle { bytes_per_second } => {
                let bytes_per_second = Some(bytes_per_second);
                (
                    Conduct {
                        bytes_per_second,
                        ..none
                    },
                    false,
                    false,
                )
            }
            Fault::Lossy { percent } => {
                let lost_percent = percent.min(100);
                (Conduct { lost_percent, ..none }, false, false)
            }
            _ => match rng.random_range(0..4) {
                0 if !one_way => (none, true, false),
                1 => (cut(none), false, true),
                _ => (cut(none), false, false),
            },
        };
        let before = self.counted(&directions);
        self.faults.push(Active {
            fault: fault.clone(),
            nodes: nodes.to_vec(),
            directions,
            conduct,
            refuses,
            breaks,
            before,
        });
        self.arrange();
        Some(Ok(BTreeMap::new()))
    }

    /// Undoes a fault and says what it did; `None` if it is not there.
    pub fn undo(&mut self, fault: &Fault, nodes: &[usize]) -> Option<BTreeMap<String, u64>> {
        let at = self
            .faults
            .iter()
            .position(|active| active.fault == *fault && active.nodes == nodes)?;
        let active = self.faults.remove(at);
        if active.breaks {
            self.break_all(&active.directions);
        }
        self.arrange();
        let (before, after) = (active.before, self.counted(&active.directions));
        let counters = [
            ("bytes_held", after.tally.bytes_held - before.tally.bytes_held),
            (
                "bytes_slowed",
                after.tally.bytes_slowed - before.tally.bytes_slowed,
            ),
            ("pieces_lost", after.tally.pieces_lost - before.tally.pieces_lost),
            ("connections_broken", after.broken - before.broken),
        ];
        let told = counters.into_iter().filter(|(_, count)| *count > 0);
        Some(told.map(|(name, count)| (name.to_owned(), count)).collect())
    }

    /// Undoes all.
    pub fn heal(&mut self) {
        for active in std::mem::take(&mut self.faults) {
            if active.breaks {
                self.break_all(&active.directions);
            }
        }
        self.arrange();
    }

    fn reset(&self, nodes: &[usize]) -> Result<BTreeMap<String, u64>> {
        let mut live = 0;
        for ((from, to), proxy) in &self.proxies {
            let concerned = nodes.iter().any(|node| node == to || *from == End::Node(*node));
            if concerned {
                live += proxy.connections().live;
                proxy.reset();
            }
        }
        if live == 0 {
            bail!("there are no connections to break");
        }
        Ok(BTreeMap::from([("connections_broken".to_owned(), live)]))
    }

    /// Lets every link and proxy behave as all faults together say.
    fn arrange(&self) {
        for (pair, link) in &self.links {
            let here = self
                .faults
                .iter()
                .filter(|active| active.directions.contains(pair));
            let conduct = here.fold(Conduct::default(), |sum, active| sum.and(active.conduct));
            if link.conduct() != conduct {
                link.set(conduct);
            }
        }
        for ((from, to), proxy) in &self.proxies {
            let pair = (*from, End::Node(*to));
            let refuses = |active: &Active| active.refuses && active.directions.contains(&pair);
            if self.down.contains(to) || self.faults.iter().any(refuses) {
                // What a dead node has sent still arrives, and then its end: only new connections are refused.
                proxy.refuse(!self.faults.iter().any(refuses));
            } else {
                proxy.accept();
            }
        }
    }

    fn break_all(&self, directions: &[(End, End)]) {
        for proxy in self.proxies_of(directions) {
            proxy.reset();
        }
    }

    fn counted(&self, directions: &[(End, End)]) -> Counted {
        let tallies = directions.iter().map(|pair| self.links[pair].tally());
        Counted {
            tally: tallies.fold(Tally::default(), Tally::plus),
            broken: self
                .proxies_of(directions)
                .map(|proxy| proxy.connections().broken)
                .sum(),
        }
    }

    /// Proxies whose requests or answers go one of these ways.
    fn proxies_of(&self, directions: &[(End, End)]) -> impl Iterator<Item = &Proxy> {
        self.proxies.iter().filter_map(move |((from, to), proxy)| {
            let to = End::Node(*to);
            let concerned = directions.contains(&(*from, to)) || directions.contains(&(to, *from));
            concerned.then_some(proxy)
        })
    }
}

async fn listen(target: SocketAddr, requests: &Arc<Link>, answers: &Arc<Link>) -> Result<Proxy> {
    for _ in 0..20 {
        let port = free_port()?;
        let proxy = Proxy::between(port, target, Arc::clone(requests), Arc::clone(answers)).await;
        if let Ok(proxy) = proxy {
            return Ok(proxy);
        }
    }
    Err(anyhow::anyhow!("twenty ports that had been free were taken")).context("start a proxy")
}

/// The ways that a fault concerns; `None` if it is no fault of a network that lasts.
fn directions(fault: &Fault, nodes: &[usize], node_count: usize) -> Option<Vec<(End, End)>> {
    let targets: BTreeSet<usize> = nodes.iter().copied().collect();
    let others: Vec<usize> = (0..node_count).filter(|node| !targets.contains(node)).collect();
    let ways = |from: &[usize], to: &[usize]| -> Vec<(End, End)> {
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
        pairs
            .filter(|(from, to)| from != to)
            .map(|(from, to)| (End::Node(from), End::Node(to)))
            .collect()
    };
    let out = ways(nodes, &others);
    let back = ways(&others, nodes);
    let both = || [out.clone(), back.clone()].concat();
    Some(match fault {
        Fault::Isolate => both(),
        Fault::Deaf => back,
        Fault::Mute => out,
        Fault::Shatter => ways(nodes, nodes),
        Fault::Ring => {
            let neighbours = |one: usize, two: usize| {
                let place = |node| nodes.iter().position(|other| *other == node).unwrap_or_default();
                let apart = place(one).abs_diff(place(two));
                apart == 1 || apart + 1 == nodes.len()
            };
            let mut pairs = ways(nodes, nodes);
            pairs.retain(|pair| match pair {
                (End::Node(one), End::Node(two)) => !neighbours(*one, *two),
                _ => false,
            });
            pairs
        }
        Fault::CutClients => {
            let pairs = nodes.iter().map(|node| End::Node(*node));
            pairs
                .flat_map(|node| [(End::Clients, node), (node, End::Clients)])
                .collect()
        }
        // Of all nodes: between any two of them.
        Fault::Delay { .. } | Fault::Throttle { .. } | Fault::Lossy { .. } if others.is_empty() => {
            ways(nodes, nodes)
        }
        Fault::Delay { .. } | Fault::Throttle { .. } | Fault::Lossy { .. } => both(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(fault: &Fault, nodes: &[usize], count: usize) -> Vec<(usize, usize)> {
        let directions = directions(fault, nodes, count).expect("it is of the network");
        let mut ways: Vec<_> = directions
            .into_iter()
            .map(|pair| match pair {
                (End::Node(from), End::Node(to)) => (from, to),
                _ => panic!("clients are not meant: {pair:?}"),
            })
            .collect();
        ways.sort_unstable();
        ways
    }

    #[test]
    fn each_fault_cuts_its_own_ways() {
        assert_eq!(ways(&Fault::Isolate, &[0], 3), [(0, 1), (0, 2), (1, 0), (2, 0)]);
        assert_eq!(ways(&Fault::Deaf, &[0], 3), [(1, 0), (2, 0)]);
        assert_eq!(ways(&Fault::Mute, &[0], 3), [(0, 1), (0, 2)]);
        assert_eq!(ways(&Fault::Shatter, &[0, 2], 3), [(0, 2), (2, 0)]);
        // 0-1-2-3-4-0 is left.
        let cut = ways(&Fault::Ring, &[0, 1, 2, 3, 4], 5);
        assert_eq!(cut.len(), 10);
        assert!(cut.contains(&(0, 2)) && cut.contains(&(4, 1)) && !cut.contains(&(4, 0)));
        assert!(ways(&Fault::Ring, &[0, 1, 2], 3).is_empty());
        assert!(ways(&Fault::Isolate, &[0, 1, 2], 3).is_empty());
        assert_eq!(ways(&Fault::Delay { ms: 1 }, &[0, 1], 2), [(0, 1), (1, 0)]);
        assert_eq!(directions(&Fault::Kill, &[0], 3), None);
    }
}
