//! Faults, carried out by the engine.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use jepsen_lite_core::cluster::{Cluster, Done};
use jepsen_lite_core::schedule::Fault;

use super::filter::{From, Rule, lossy, one_way};
use super::layout::{Layout, NODES_MAX};
use super::{ADDED, Containers, FIRST};

/// How long an orderly stop may take, in seconds: the server's own deadline, and some.
const STOP_SECONDS: &str = "30";
/// Microseconds in which a share of the processor is counted.
const CPU_PERIOD: u64 = 100_000;

/// What a fault did, counted.
type Counters = BTreeMap<String, u64>;

impl Cluster for Containers {
    fn node_count(&self) -> usize {
        self.made
    }

    fn running(&self) -> Vec<usize> {
        (0..self.made).filter(|node| !self.down.contains(node)).collect()
    }

    async fn leader(&mut self) -> Option<usize> {
        let mut leaders = Vec::new();
        for node in self.running() {
            match self.status(node).await {
                Ok(status) if status.role == "leader" => leaders.push((status.term, node)),
                _ => {}
            }
        }
        leaders.into_iter().max().map(|(_, node)| node)
    }

    async fn newest(&mut self, of: &[usize]) -> Option<usize> {
        let mut reached = Vec::new();
        for node in of.iter().copied().filter(|node| !self.down.contains(node)) {
            if let Ok(status) = self.status(node).await {
                reached.push((status.last_log_index, node));
            }
        }
        reached.into_iter().max().map(|(_, node)| node)
    }

    async fn inflict(&mut self, fault: &Fault, nodes: &[usize], _seed: u64) -> Result<(Done, Counters)> {
        let (counter, count) = match fault {
            Fault::Kill => ("killed", self.end(&["kill", "--signal", "KILL"], nodes).await?),
            Fault::Stop => (
                "stopped",
                self.end(&["stop", "--time", STOP_SECONDS], nodes).await?,
            ),
            Fault::Restart => ("restarted", self.restart(nodes).await?),
            Fault::Pause => ("paused", self.pause(nodes).await?),
            Fault::SlowCpu { percent } => ("slowed", self.slow(nodes, *percent).await?),
            // Alone, it is pulled out of the network; a group keeps its connections among itself.
            Fault::Isolate if nodes.len() == 1 => ("unplugged", self.unplug(nodes).await?),
            Fault::Isolate
            | Fault::Deaf
            | Fault::Mute
            | Fault::Shatter
            | Fault::Ring
            | Fault::Lossy { .. }
            | Fault::CutClients => {
                let rules = self.rules(fault, nodes);
                self.filter.add(&rules);
                if let Err(error) = self.lay_all().await {
                    self.filter.remove(&rules);
                    return Ok((Done::Skipped(format!("{error:#}")), Counters::new()));
                }
                // What they stop is counted when they are taken away.
                return Ok((Done::Yes, Counters::new()));
            }
            Fault::Wipe => ("emptied", self.wipe(nodes).await?),
            Fault::Grow => match self.grow(nodes.len()).await? {
                0 => {
                    let why = format!("the compose file has no more than {NODES_MAX} nodes");
                    return Ok((Done::Skipped(why), Counters::new()));
                }
                grown => ("added", grown),
            },
            Fault::Shrink => ("removed", self.shrink(nodes).await?),
            Fault::Transfer => match self.transfer(nodes).await {
                Ok(moved) => ("transferred", moved),
                Err(error) => return Ok((Done::Unknown(format!("{error:#}")), Counters::new())),
            },
            Fault::Upgrade => match self.settings.image_next.clone() {
                Some(image) => ("exchanged", self.exchange(nodes, &image).await?),
                None => {
                    let why = "no second image was given".to_owned();
                    return Ok((Done::Skipped(why), Counters::new()));
                }
            },
            other => {
                let why = format!("{} cannot be done to containers from outside", other.name());
                return Ok((Done::Skipped(why), Counters::new()));
            }
        };
        Ok((Done::Yes, [(counter.to_owned(), count)].into()))
    }

    async fn undo(&mut self, fault: &Fault, nodes: &[usize]) -> Result<Counters> {
        let mut counters = Counters::new();
        match fault {
            Fault::Kill | Fault::Stop => self.begin(nodes).await?,
            Fault::Pause => self.go_on(nodes).await?,
            Fault::SlowCpu { .. } => self.full_speed(nodes).await?,
            Fault::Isolate if nodes.len() == 1 => self.plug_in(nodes).await?,
            Fault::Isolate
            | Fault::Deaf
            | Fault::Mute
            | Fault::Shatter
            | Fault::Ring
            | Fault::Lossy { .. }
            | Fault::CutClients => {
                self.filter.remove(&self.rules(fault, nodes));
                counters.insert("packets_stopped".to_owned(), self.lay_all().await?);
            }
            Fault::Wipe | Fault::Shrink => {
                let rejoined = self.rejoin(nodes).await?;
                counters.insert("joined_again".to_owned(), rejoined);
            }
            Fault::Upgrade => {
                let image = self.settings.image.clone();
                let back = self.exchange(nodes, &image).await?;
                counters.insert("exchanged_back".to_owned(), back);
            }
            // The nodes that came stay until the end: the schedule names those that were there.
            _ => {}
        }
        Ok(counters)
    }

    async fn heal(&mut self) -> Result<()> {
        let all: Vec<usize> = (0..self.made).collect();
        self.go_on(&all).await?;
        self.full_speed(&all).await?;
        self.filter.clear();
        self.notice_the_dead().await?;
        let emptied: Vec<usize> = self.emptied.keys().copied().collect();
        let whole: Vec<usize> = all
            .iter()
            .copied()
            .filter(|node| !emptied.contains(node))
            .collect();
        self.begin(&whole).await?;
        self.plug_in(&all).await?;
        // Without filters there is nothing to take away, and a machine that cannot do them needs none.
        let _ = self.lay_all().await;
        self.rejoin(&emptied).await?;
        self.ready(&all).await
    }
}

impl Containers {
    /// Ends containers at once or in order.
    async fn end(&mut self, how: &[&str], nodes: &[usize]) -> Result<u64> {
        let nodes = self.those_up(nodes);
        // A frozen process gets no signal but the last one.
        self.go_on(&nodes).await?;
        let names: Vec<String> = nodes.iter().map(|node| self.layout.container(*node)).collect();
        if !names.is_empty() {
            let mut arguments = how.to_vec();
            arguments.extend(names.iter().map(String::as_str));
            self.engine.docker(&arguments).await?;
        }
        self.down.extend(&nodes);
        Ok(nodes.len() as u64)
    }

    /// Starts containers that do not run.
    async fn begin(&mut self, nodes: &[usize]) -> Result<()> {
        for &node in nodes {
            if self.down.contains(&node) {
                self.engine
                    .docker(&["start", &self.layout.container(node)])
                    .await?;
                self.down.remove(&node);
                // A new network namespace has no rules.
                let _ = self.filter.lay(&self.engine, &self.layout, node).await;
            }
        }
        Ok(())
    }

    async fn restart(&mut self, nodes: &[usize]) -> Result<u64> {
        let nodes = self.those_up(nodes);
        for &node in &nodes {
            self.go_on(&[node]).await?;
            let name = self.layout.container(node);
            self.engine
                .docker(&["restart", "--time", STOP_SECONDS, &name])
                .await?;
            let _ = self.filter.lay(&self.engine, &self.layout, node).await;
            self.ready(&[node]).await?;
        }
        Ok(nodes.len() as u64)
    }

    async fn pause(&mut self, nodes: &[usize]) -> Result<u64> {
        let mut count = 0;
        for node in self.those_up(nodes) {
            if self.paused.insert(node) {
                self.engine
                    .docker(&["pause", &self.layout.container(node)])
                    .await?;
                count += 1;
            }
        }
        Ok(count)
    }

    async fn go_on(&mut self, nodes: &[usize]) -> Result<()> {
        for node in nodes {
            if self.paused.remove(node) {
                self.engine
                    .docker(&["unpause", &self.layout.container(*node)])
                    .await?;
            }
        }
        Ok(())
    }

    async fn slow(&mut self, nodes: &[usize], percent: u8) -> Result<u64> {
        let period = CPU_PERIOD.to_string();
        // The engine refuses less than a hundredth.
        let quota = (CPU_PERIOD * u64::from(percent.max(1)) / 100).to_string();
        for &node in nodes {
            let name = self.layout.container(node);
            let update = ["update", "--cpu-period", &period, "--cpu-quota", &quota, &name];
            self.engine.docker(&update).await?;
            self.slowed.insert(node);
        }
        Ok(nodes.len() as u64)
    }

    async fn full_speed(&mut self, nodes: &[usize]) -> Result<()> {
        for node in nodes {
            if self.slowed.remove(node) {
                let name = self.layout.container(*node);
                self.engine
                    .docker(&["update", "--cpu-quota", "-1", &name])
                    .await?;
            }
        }
        Ok(())
    }

    async fn unplug(&mut self, nodes: &[usize]) -> Result<u64> {
        let network = self.layout.peer_network();
        let mut count = 0;
        for &node in nodes {
            if self.unplugged.insert(node) {
                let name = self.layout.container(node);
                self.engine
                    .docker(&["network", "disconnect", &network, &name])
                    .await?;
                count += 1;
            }
        }
        Ok(count)
    }

    async fn plug_in(&mut self, nodes: &[usize]) -> Result<()> {
        let network = self.layout.peer_network();
        for &node in nodes {
            if self.unplugged.remove(&node) {
                let (name, address) = (self.layout.container(node), Layout::peer_address(node));
                let connect = ["network", "connect", "--ip", &address, &network, &name];
                self.engine.docker(&connect).await?;
            }
        }
        Ok(())
    }

    /// Who does not get what, for faults that packet filters do.
    fn rules(&self, fault: &Fault, nodes: &[usize]) -> Vec<Rule> {
        let others: Vec<usize> = (0..self.made).filter(|node| !nodes.contains(node)).collect();
        match fault {
            Fault::Isolate => [one_way(nodes, &others), one_way(&others, nodes)].concat(),
            Fault::Deaf => one_way(&others, nodes),
            Fault::Mute => one_way(nodes, &others),
            Fault::Shatter => one_way(nodes, nodes),
            Fault::Ring => {
                let neighbours = |a: usize, b: usize| (a + 1) % self.made == b || (b + 1) % self.made == a;
                let mut rules = one_way(nodes, &others);
                rules.extend(one_way(&others, nodes));
                rules.extend(one_way(nodes, nodes));
                rules.retain(|rule| match rule.from {
                    From::Peer(from) => !neighbours(from, rule.at),
                    From::Clients => true,
                });
                rules
            }
            Fault::Lossy { percent } => {
                [lossy(nodes, &others, *percent), lossy(&others, nodes, *percent)].concat()
            }
            Fault::CutClients => nodes
                .iter()
                .map(|&at| Rule {
                    at,
                    from: From::Clients,
                    percent: 100,
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Lays down the rules of all running nodes, and returns how many packets those stopped that were there.
    async fn lay_all(&self) -> Result<u64> {
        let mut stopped = 0;
        for node in (0..self.made).filter(|node| !self.down.contains(node)) {
            stopped += self.filter.lay(&self.engine, &self.layout, node).await?;
        }
        Ok(stopped)
    }

    /// Kills nodes and deletes what is in their volumes.
    async fn wipe(&mut self, nodes: &[usize]) -> Result<u64> {
        for &node in nodes {
            let id = self.status(node).await.map_or(0, |status| status.node_id);
            self.end(&["kill", "--signal", "KILL"], &[node]).await?;
            self.empty(node).await?;
            self.emptied.insert(node, id);
        }
        Ok(nodes.len() as u64)
    }

    /// Deletes what is in the volume of a node that does not run.
    async fn empty(&self, node: usize) -> Result<()> {
        let (name, image) = (self.layout.container(node), self.images[node].as_str());
        const DELETE: &str = "find /var/lib/quorate -mindepth 1 -delete";
        let run = [
            "run",
            "--rm",
            "--network",
            "none",
            "--user",
            "0",
            "--no-healthcheck",
            "--volumes-from",
            &name,
            "--entrypoint",
            "/bin/sh",
            image,
            "-ec",
            DELETE,
        ];
        self.engine
            .docker(&run)
            .await
            .with_context(|| format!("empty node {node}"))?;
        Ok(())
    }

    /// Starts emptied nodes and brings them in as new ones.
    async fn rejoin(&mut self, nodes: &[usize]) -> Result<u64> {
        let mut count = 0;
        for &node in nodes {
            if self.emptied.contains_key(&node) {
                self.begin(&[node]).await?;
                self.join(node).await?;
                self.emptied.remove(&node);
                count += 1;
            }
        }
        Ok(count)
    }

    /// Starts nodes that were not there and adds them.
    async fn grow(&mut self, count: usize) -> Result<u64> {
        let new: Vec<usize> = (self.made..NODES_MAX).take(count).collect();
        for &node in &new {
            self.up(&[node], ADDED).await?;
            self.join(node).await?;
        }
        Ok(new.len() as u64)
    }

    /// Removes members, and empties them: they come back as new ones.
    async fn shrink(&mut self, nodes: &[usize]) -> Result<u64> {
        for &node in nodes {
            let id = self.status(node).await?.node_id;
            self.leave(id).await?;
            self.end(&["kill", "--signal", "KILL"], &[node]).await?;
            self.empty(node).await?;
            self.emptied.insert(node, id);
        }
        Ok(nodes.len() as u64)
    }

    /// Stops nodes one after the other and starts them from another image, with their data.
    async fn exchange(&mut self, nodes: &[usize], image: &str) -> Result<u64> {
        let mut count = 0;
        for &node in nodes {
            if self.images[node] == image {
                continue;
            }
            self.images[node] = image.to_owned();
            let settings = if node < self.settings.nodes { FIRST } else { ADDED };
            // Compose stops what is there, in order, and makes it anew with the same volume and addresses.
            self.up(&[node], settings).await?;
            self.down.remove(&node);
            self.unplugged.remove(&node);
            let _ = self.filter.lay(&self.engine, &self.layout, node).await;
            self.ready(&[node]).await?;
            count += 1;
        }
        Ok(count)
    }

    async fn transfer(&mut self, nodes: &[usize]) -> Result<u64> {
        let Some(&to) = nodes.first() else { return Ok(0) };
        let id = self.status(to).await?.node_id;
        let client = quorate_client::Client::connect(self.endpoints()).await?;
        client.cluster().transfer_leader(Some(id)).await?;
        Ok(1)
    }

    /// Those of these that run.
    fn those_up(&self, nodes: &[usize]) -> Vec<usize> {
        nodes
            .iter()
            .copied()
            .filter(|node| !self.down.contains(node))
            .collect()
    }

    /// A node that ended by itself, or that the kernel ended for its memory, is down without anybody's doing.
    async fn notice_the_dead(&mut self) -> Result<()> {
        for node in self.those_up(&(0..self.made).collect::<Vec<_>>()) {
            if self.ended(node).await?.is_some() {
                self.down.insert(node);
            }
        }
        Ok(())
    }
}
