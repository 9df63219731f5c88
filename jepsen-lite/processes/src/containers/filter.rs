//! Packets that do not arrive.
//!
//! A cut stands where packets come in, in the network namespace of the container: whoever sends does not notice,
//! as with a broken line. It is gone with the namespace when a container ends, so it is laid down again when one
//! starts.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::engine::{Engine, run};
use super::layout::Layout;

use std::time::Duration;

/// The chain that holds the rules, so that no other rule is touched.
const CHAIN: &str = "JEPSEN-LITE";
/// How long laying down rules may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Whose packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// Those of another node.
    Peer(usize),
    /// Those of clients.
    Clients,
}

/// Packets that one node is not to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Who does not get them.
    pub(super) at: usize,
    /// Whose they are.
    pub(super) from: From,
    /// How many per cent of them; 100 = all.
    pub(super) percent: u8,
}

/// All rules that are in force.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    rules: Vec<Rule>,
}

impl Filter {
    /// Adds rules. They hold from [`lay`](Self::lay) on.
    pub(super) fn add(&mut self, rules: &[Rule]) {
        self.rules.extend_from_slice(rules);
    }

    /// Takes rules away, each once: an equal one of another fault stays.
    pub(super) fn remove(&mut self, rules: &[Rule]) {
        for rule in rules {
            if let Some(place) = self.rules.iter().position(|known| known == rule) {
                self.rules.remove(place);
            }
        }
    }

    /// Takes all rules away.
    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// Lays down the rules of a running node in place of those that are there. Returns how many packets these
    /// have stopped.
    ///
    /// # Errors
    ///
    /// When this machine does not let us into the namespace, or has no packet filter.
    pub(super) async fn lay(&self, engine: &Engine, layout: &Layout, node: usize) -> Result<u64> {
        let name = layout.container(node);
        let process = engine
            .docker(&["inspect", "--format", "{{.State.Pid}}", &name])
            .await?;
        let script = self.script(node);
        let inside = ["--target", &process, "--net", "sh", "-ec", &script];
        let listed = run("nsenter", &inside, LIMIT)
            .await
            .context("packet filters in the network of a container need root, nsenter and iptables")?;
        Ok(stopped(&listed))
    }

    /// Lists the chain with its counts, and makes it anew.
    fn script(&self, node: usize) -> String {
        let mut script = format!(
            "iptables -w -N {CHAIN} 2>/dev/null || iptables -w -vnx -L {CHAIN}\n\
             iptables -w -C INPUT -j {CHAIN} 2>/dev/null || iptables -w -I INPUT -j {CHAIN}\n\
             iptables -w -F {CHAIN}\n"
        );
        for rule in self.rules.iter().filter(|rule| rule.at == node) {
            let whose = match rule.from {
                From::Peer(peer) => format!("-s {}", Layout::peer_address(peer)),
                From::Clients => format!("-d {}", Layout::client_address(node)),
            };
            let share = match rule.percent {
                100.. => String::new(),
                percent => format!(
                    " -m statistic --mode random --probability {:.2}",
                    f64::from(percent) / 100.0
                ),
            };
            let _ = writeln!(script, "iptables -w -A {CHAIN} {whose}{share} -j DROP");
        }
        script
    }
}

/// The packets of a listing with counts: the first column of rules that drop.
fn stopped(listed: &str) -> u64 {
    listed
        .lines()
        .filter(|line| line.contains("DROP"))
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Nothing gets from the ones to the others.
pub(super) fn one_way(from: &[usize], to: &[usize]) -> Vec<Rule> {
    lossy(from, to, 100)
}

/// So many per cent do not get from the ones to the others.
pub(super) fn lossy(from: &[usize], to: &[usize], percent: u8) -> Vec<Rule> {
    let pairs = to.iter().flat_map(|at| from.iter().map(move |from| (*at, *from)));
    pairs
        .filter(|(at, from)| at != from)
        .map(|(at, from)| Rule {
            at,
            from: From::Peer(from),
            percent,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_stands_at_those_who_are_not_to_hear() {
        let mut filter = Filter::default();
        filter.add(&one_way(&[0], &[1, 2]));
        filter.add(&[Rule {
            at: 1,
            from: From::Clients,
            percent: 30,
        }]);
        assert!(!filter.script(0).contains("DROP"));
        let script = filter.script(1);
        assert!(
            script.contains("-A JEPSEN-LITE -s 10.213.1.10 -j DROP"),
            "{script}"
        );
        assert!(
            script.contains("-d 10.213.2.11 -m statistic --mode random --probability 0.30 -j DROP"),
            "{script}"
        );
    }

    #[test]
    fn an_equal_cut_of_another_fault_stays() {
        let (mut filter, cut) = (Filter::default(), one_way(&[0], &[1]));
        filter.add(&cut);
        filter.add(&cut);
        filter.remove(&cut);
        assert_eq!(filter.rules, cut);
    }

    #[test]
    fn stopped_packets_are_counted_from_the_listing() {
        let listed = "Chain JEPSEN-LITE (1 references)\n    pkts      bytes target\n\
                      \x20     17     1020 DROP  0  --  *  *  10.213.1.10  0.0.0.0/0\n\
                      \x20      3      180 DROP  0  --  *  *  10.213.1.12  0.0.0.0/0\n";
        assert_eq!(stopped(listed), 20);
    }
}
