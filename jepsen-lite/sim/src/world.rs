//! The world of a run: machines, their disks, the network, and the time that passes for all of them.
//!
//! A tick is a millisecond. In each, what the clients ordered is done, the network delivers what is due, and
//! every machine runs for its share of the tick, in an order that the seed draws anew. The clients, the nemesis
//! and whoever judges are the *people*: one machine more, on the network, that never fails.
//!
//! The people cannot reach into another machine, since everything outside of theirs stands still while they run.
//! What they want done to the world they [order](Orders::order), and it is done between two ticks.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quorate_node::Broker;
use quorate_raft::simulation::{Disk, Unflushed, run_disk};
use tokio::sync::oneshot;

use crate::machine::{Clock, Machine, TICK_US};
use crate::net::{Host, Network, Plane};
use crate::program::{Program, Wire};
use crate::rng::Rng;
use crate::trace::Trace;
use crate::watch::Watch;

/// Where the clients are.
pub const PEOPLE: Host = Host(1_000);

/// A strobing clock changes sides after so many ticks.
const STROBE_TICKS: u64 = 150;

/// What is the same for all nodes of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of everything that is drawn.
    pub seed: u64,
    /// Nodes that form the cluster.
    pub nodes: usize,
    /// Of each node; addresses, names, disks and clocks are filled in.
    pub node: quorate_node::Config,
    /// Lets a leader that restarts lead on without an election: a known way to lose acknowledged entries, which
    /// the simulator must find.
    pub restore_leader: bool,
    /// How far wall clocks are apart at the start, at most, in milliseconds.
    pub clock_spread_ms: u64,
}

/// See the page above.
pub struct World {
    settings: Settings,
    tick: u64,
    rng: Rng,
    network: Network,
    trace: Trace,
    people: Machine,
    people_clock: Clock,
    places: Vec<Place>,
    orders: Orders,
    watch: Watch,
    copy_at_ms: Option<u64>,
}

/// Where a node is, or was: a machine with a disk and a clock, whether its program runs or not.
pub struct Place {
    /// On the network.
    pub host: Host,
    /// What outlives the program.
    pub disk: Disk,
    /// So does its clock.
    pub clock: Clock,
    /// A clock that jumps to and fro by so many milliseconds.
    pub strobe_ms: Option<i64>,
    /// It is on the far side.
    strobed: bool,
    /// Its program stands still.
    pub paused: bool,
    /// It gets so many per cent of its time only.
    pub percent: Option<u8>,
    /// Ticks in which its program did not run though it was there.
    pub missed: u64,
    /// Every sync takes so much longer, in milliseconds.
    pub sync_delay_ms: Arc<AtomicU64>,
    /// Syncs that did.
    pub slow_syncs: Arc<AtomicU64>,
    /// A fault took away or changed what was durable on its disk.
    pub damaged: bool,
    /// What its disk looked like earlier in this run.
    pub copy: Option<Disk>,
    /// Whether it knows its peers from the start, or waits to be added.
    pub first: bool,
    /// How often its program was started.
    pub lives: u64,
    life: Option<(Machine, Program)>,
}

/// What somebody wants done.
type Order = Box<dyn FnOnce(&mut World) + Send>;

/// The way to the world from inside of it. Clones are the same way.
#[derive(Clone, Default)]
pub struct Orders {
    queue: Arc<Mutex<VecDeque<Order>>>,
    running: Arc<Mutex<Vec<bool>>>,
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Orders")
    }
}

impl Orders {
    /// Has something done to the world before the next tick, and waits for what comes of it.
    ///
    /// # Panics
    ///
    /// If the world is gone, in which nobody is who could wait.
    pub async fn order<T: Send + 'static>(&self, act: impl FnOnce(&mut World) -> T + Send + 'static) -> T {
        let (tell, told) = oneshot::channel();
        self.queue.lock().push_back(Box::new(move |world| {
            let _ = tell.send(act(world));
        }));
        told.await.expect("the world carries out its orders")
    }

    /// For each place, whether its program runs.
    #[must_use]
    pub fn running(&self) -> Vec<bool> {
        self.running.lock().clone()
    }
}

impl World {
    /// A world with the machines of a cluster, which are started.
    #[must_use]
    pub fn new(settings: Settings, trace: Trace) -> Self {
        let seed = settings.seed;
        let network = Network::new(Rng::stream(seed, "network"), trace.clone());
        let people_clock = Clock::new(0);
        let mut world = Self {
            tick: 0,
            rng: Rng::stream(seed, "world"),
            people: Machine::start(people_clock),
            people_clock,
            places: Vec::new(),
            orders: Orders::default(),
            copy_at_ms: None,
            watch: Watch::new(trace.clone()),
            network,
            trace,
            settings,
        };
        let first: Vec<usize> = (0..world.settings.nodes).map(|_| world.add_place(true)).collect();
        for place in first {
            world.start(place);
        }
        world
    }

    /// The way to this world from inside of it.
    #[must_use]
    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }

    /// Its network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// What is watched while it runs.
    pub fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Microseconds since it began.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.tick * TICK_US
    }

    /// A place for one node more: `first` = one of those that form the cluster.
    pub fn add_place(&mut self, first: bool) -> usize {
        let number = self.places.len();
        let spread = self.settings.clock_spread_ms;
        let offset = self.rng.between(0, 2 * spread).cast_signed() - spread.cast_signed();
        let mut clock = self.people_clock;
        clock.wall_offset_ms = offset;
        self.places.push(Place {
            host: Host(u32::try_from(number + 1).expect("few nodes")),
            disk: Disk::new(),
            clock,
            strobe_ms: None,
            strobed: false,
            paused: false,
            percent: None,
            missed: 0,
            sync_delay_ms: Arc::default(),
            slow_syncs: Arc::default(),
            damaged: false,
            copy: None,
            first,
            lives: 0,
            life: None,
        });
        number
    }

    /// How many places there are.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// One of them.
    pub fn place(&mut self, number: usize) -> &mut Place {
        &mut self.places[number]
    }

    /// Starts the program of a place, if it does not run.
    pub fn start(&mut self, number: usize) {
        let first: Vec<String> = self
            .places
            .iter()
            .take(self.settings.nodes)
            .map(|place| place.host.address(Plane::Peers).to_string())
            .collect();
        let place = &mut self.places[number];
        if place.life.is_some() {
            return;
        }
        self.network.power_on(place.host);
        place.lives += 1;
        place.paused = false;
        let program = Program::default();
        let config = quorate_node::Config {
            name: format!("n{}", number + 1),
            peer_listen: place.host.address(Plane::Peers),
            client_advertise: place.host.address(Plane::Clients).to_string(),
            peers: if place.first { first } else { Vec::new() },
            audit: self.watch.audit(number),
            transport: Arc::new(Wire {
                network: self.network.clone(),
                host: place.host,
            }),
            disk: Some(place.disk.clone()),
            restore_leader: self.settings.restore_leader,
            ..self.settings.node.clone()
        };
        let machine = Machine::start(place.clock);
        let runtime = machine.runtime();
        let latency = latency(
            Rng::stream(self.settings.seed, &format!("disk {number} {}", place.lives)),
            Arc::clone(&place.sync_delay_ms),
            Arc::clone(&place.slow_syncs),
        );
        runtime.spawn(run_disk(place.disk.clone(), latency));
        runtime.spawn(program.clone().run(config, self.network.clone(), place.host));
        place.life = Some((machine, program));
        self.note("start", number, self.places[number].lives);
    }

    /// Ends the program of a place, from one moment to the next: the process is killed, or, with `power`, the
    /// machine loses it. What was not flushed is lost as `unflushed` says. False if it did not run.
    pub fn crash(&mut self, number: usize, unflushed: Unflushed, power: bool) -> bool {
        let place = &mut self.places[number];
        if power {
            self.network.power_off(place.host);
        }
        let Some((machine, _)) = place.life.take() else {
            return false;
        };
        place.disk.crash(unflushed);
        drop(machine);
        self.note("crash", number, u64::from(power));
        true
    }

    /// Empties the disk of a place whose program does not run, and starts it again, as somebody does who does not know that
    /// its data is gone. From then on nobody may answer for the node that it was.
    pub fn wipe(&mut self, number: usize) {
        let place = &mut self.places[number];
        if let Some(id) = place.disk.node_id() {
            // What a fault took from it had been there, and was told.
            let had = if place.damaged {
                u64::MAX
            } else {
                reach(&place.disk)
            };
            self.watch.emptied(number, id, had);
        }
        place.disk.wipe();
        // What it is now has lost nothing.
        place.damaged = false;
        self.start(number);
    }

    /// The broker of a place, if it runs.
    #[must_use]
    pub fn broker(&self, number: usize) -> Option<Broker> {
        self.places[number].program().and_then(Program::broker)
    }

    /// Places whose program runs, and does not stand still.
    #[must_use]
    pub fn alive(&self) -> Vec<usize> {
        (0..self.places.len())
            .filter(|&number| self.places[number].life.is_some() && !self.places[number].paused)
            .collect()
    }

    /// Has a copy made of every disk at this time, in milliseconds since the world began, for a later rollback.
    pub fn copy_disks_at(&mut self, at_ms: u64) {
        self.copy_at_ms = Some(at_ms);
    }

    fn copy_disks(&mut self) {
        for place in &mut self.places {
            place.copy = Some(place.disk.copy());
        }
    }

    /// Notes an event of the world.
    pub fn note(&self, kind: &'static str, number: usize, value: u64) {
        self.trace.note(self.now_us(), kind, &[number as u64, value], &[]);
    }

    /// Lets time pass until the people are done with `main`, or until `limit` of virtual time: then `None`.
    pub fn run<T>(&mut self, limit: Duration, main: impl Future<Output = T>) -> Option<T> {
        let mut main = pin!(main);
        let limit = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        while self.now_us() < limit {
            self.carry_out_orders();
            if self.copy_at_ms == Some(self.now_us() / 1_000) {
                self.copy_disks();
            }
            self.network.deliver(self.now_us());
            let mut order: Vec<Option<usize>> = (0..self.places.len()).map(Some).chain([None]).collect();
            self.rng.shuffle(&mut order);
            let mut done = None;
            for whose in order {
                match whose {
                    Some(number) => self.places[number].run(self.tick),
                    None => {
                        self.people_clock.tick();
                        done = self.people.run_with(self.people_clock, main.as_mut());
                    }
                }
            }
            self.bury();
            self.watch.look(self.tick, &self.places);
            self.tick += 1;
            if done.is_some() {
                return done;
            }
        }
        None
    }

    fn carry_out_orders(&mut self) {
        loop {
            let next = self.orders.queue.lock().pop_front();
            let Some(order) = next else { break };
            order(self);
        }
        *self.orders.running.lock() = self.places.iter().map(|place| place.life.is_some()).collect();
    }

    /// Programs that have ended by themselves are gone.
    fn bury(&mut self) {
        for number in 0..self.places.len() {
            let ended = self.places[number].program().and_then(Program::ended);
            if let Some(end) = ended {
                self.trace
                    .note(self.now_us(), "ended", &[number as u64], end.why.as_bytes());
                let place = &mut self.places[number];
                let explained = end.in_order || place.damaged || place.disk.stats().faults > 0;
                self.watch.ended(number, self.tick, &end.why, explained);
                // Its store is closed or has failed: what was handed to the disk by a process that ended is there.
                place.disk.crash(Unflushed::Kept);
                place.life = None;
            }
        }
    }
}

impl Place {
    /// Its program, if it runs.
    #[must_use]
    pub fn program(&self) -> Option<&Program> {
        self.life.as_ref().map(|(_, program)| program)
    }

    /// The clock jumps no more, and is where it would be.
    pub fn end_strobe(&mut self) {
        if let Some(strobe_ms) = self.strobe_ms.take()
            && std::mem::take(&mut self.strobed)
        {
            self.clock.wall_offset_ms -= strobe_ms;
        }
    }

    fn run(&mut self, tick: u64) {
        self.clock.tick();
        if let Some(strobe_ms) = self.strobe_ms
            && tick.is_multiple_of(STROBE_TICKS)
        {
            self.clock.wall_offset_ms += if self.strobed { -strobe_ms } else { strobe_ms };
            self.strobed = !self.strobed;
        }
        let Some((machine, _)) = &mut self.life else {
            return;
        };
        // Ten milliseconds at a time, as a scheduler would.
        let slow = self
            .percent
            .is_some_and(|percent| (tick / 10) % 10 >= u64::from(percent).div_ceil(10));
        if self.paused || slow {
            self.missed += 1;
        } else {
            machine.run(self.clock);
        }
    }
}

/// How far the log on a disk reaches; a disk that cannot be read reaches anywhere.
fn reach(disk: &Disk) -> u64 {
    disk.durable_log().map_or(u64::MAX, |log| {
        let last = log.entries.last().map(|record| record.index);
        let purged = log.purged.map(|(index, _)| index);
        last.max(purged).unwrap_or(0)
    })
}

/// How long a flush takes: a millisecond or two, now and then much longer.
fn latency(
    mut rng: Rng,
    delay_ms: Arc<AtomicU64>,
    slow_syncs: Arc<AtomicU64>,
) -> impl FnMut() -> Duration + Send + 'static {
    move || {
        let usual = match rng.below(100) {
            0 => rng.between(10_000, 40_000),
            1..=9 => rng.between(2_000, 6_000),
            _ => rng.between(300, 2_000),
        };
        let delay = delay_ms.load(Ordering::Relaxed);
        slow_syncs.fetch_add(u64::from(delay > 0), Ordering::Relaxed);
        Duration::from_micros(usual) + Duration::from_millis(delay)
    }
}
