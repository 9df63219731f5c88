//! A seed is a run: the same events with the same bytes, in whichever process, whatever ran before.
//!
//! The world here is small and hard: gRPC servers and clients on several machines, over HTTP/2, with everything
//! that is known to draw random numbers or to read clocks in between. It is run twice per seed, in processes of
//! their own, the second time from the last seed to the first.

#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, HashMap};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hyper_util::rt::TokioIo;
use jepsen_lite_sim::machine::{Clock, Machine, TICK_US};
use jepsen_lite_sim::net::rule::{Rule, What};
use jepsen_lite_sim::net::{Host, Network, Plane};
use jepsen_lite_sim::rng::Rng;
use jepsen_lite_sim::trace::Trace;
use parking_lot::Mutex;
use quorate_disk_shim::simulation;
use quorate_proto::internal::forward_client::ForwardClient;
use quorate_proto::internal::forward_server::{Forward, ForwardServer};
use quorate_proto::internal::{ForwardRequest, ForwardResponse};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

const SEEDS: u64 = 20;

fn main() {
    if simulation::is_simulated() {
        let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok());
        println!("{}", toy_world(seed.expect("the parent passes a seed")));
        return;
    }
    // libtest's arguments are of no use here; a filter that is not ours means that we are not meant.
    if std::env::args().skip(1).any(|argument| argument == "--list") {
        return;
    }
    let forth: Vec<String> = (0..SEEDS).map(in_a_process_of_its_own).collect();
    let back: Vec<String> = (0..SEEDS).rev().map(in_a_process_of_its_own).collect();
    for (seed, (first, second)) in forth.iter().zip(back.iter().rev()).enumerate() {
        assert_eq!(first, second, "seed {seed} ran in two ways");
        println!("seed {seed}: {first}");
    }
    let different: std::collections::BTreeSet<&String> = forth.iter().collect();
    assert_eq!(
        different.len(),
        forth.len(),
        "two seeds ran alike: the trace shows nothing"
    );
}

fn in_a_process_of_its_own(seed: u64) -> String {
    let itself = std::env::current_exe().expect("this test");
    let output = Command::new(itself)
        .arg(seed.to_string())
        .env(simulation::SEED_VARIABLE, seed.to_string())
        .output()
        .expect("it can be started again");
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !said.is_empty(),
        "seed {seed}: {complained}"
    );
    said
}

/// Three echo servers, one client machine, a cut and a killed server, five virtual seconds.
fn toy_world(seed: u64) -> String {
    let trace = Trace::new(None);
    let network = Network::new(Rng::stream(seed, "network"), trace.clone());
    let mut rng = Rng::stream(seed, "machines");
    let clients = Host(100);
    let mut machines: BTreeMap<Host, Machine> = BTreeMap::new();
    for node in 0..3 {
        let machine = Machine::start(Clock::new(0));
        machine.runtime().spawn(serve(network.clone(), Host(node)));
        machines.insert(Host(node), machine);
    }
    let machine = Machine::start(Clock::new(0));
    let answers = Arc::new(Mutex::new(0));
    for node in 0..3 {
        machine.runtime().spawn(ask(
            network.clone(),
            clients,
            Host(node),
            trace.clone(),
            Arc::clone(&answers),
        ));
    }
    machine.runtime().spawn(draw(trace.clone()));
    machines.insert(clients, machine);

    let mut clocks: BTreeMap<Host, Clock> = BTreeMap::new();
    let mut cut = None;
    for tick in 0..5_000_u64 {
        network.deliver(tick * TICK_US);
        match tick {
            1_000 => {
                let directions = [(Host(0), clients), (clients, Host(1))].into();
                cut = Some(network.impose(Rule {
                    directions,
                    plane: None,
                    what: What::Cut,
                }));
            }
            2_000 => {
                let counters = network.lift(cut.take().expect("imposed before"));
                assert!(counters.held > 0, "seed {seed}: the cut had no effect");
            }
            3_000 => {
                machines.remove(&Host(2));
            }
            3_500 => {
                let machine = Machine::start(clocks[&Host(2)]);
                machine.runtime().spawn(serve(network.clone(), Host(2)));
                machines.insert(Host(2), machine);
            }
            _ => {}
        }
        let mut order: Vec<Host> = machines.keys().copied().collect();
        rng.shuffle(&mut order);
        for host in order {
            let machine = machines.get_mut(&host).expect("listed above");
            let clock = clocks.entry(host).or_insert_with(|| Clock::new(0));
            clock.tick();
            machine.run(*clock);
        }
    }
    let answers = *answers.lock();
    assert!(answers > 500, "seed {seed}: only {answers} answers");
    trace.note(0, "entropy", &[simulation::drawn_bytes()], &[]);
    format!("{} {answers} answers", trace.hash())
}

struct Echo;

#[tonic::async_trait]
impl Forward for Echo {
    async fn propose(&self, request: Request<ForwardRequest>) -> Result<Response<ForwardResponse>, Status> {
        let bytes = request.into_inner().batch;
        let pause = rand::random_range(0..5);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if bytes.len().is_multiple_of(7) {
            return Err(Status::unavailable("a multiple of seven"));
        }
        Ok(Response::new(ForwardResponse { result: None }))
    }
}

async fn serve(network: Network, host: Host) {
    let mut listener = network
        .listen(host, Plane::Peers)
        .expect("nobody else listens there");
    let incoming = futures_util::stream::poll_fn(move |context| {
        listener
            .poll_accept(context)
            .map(|connection| Some(Ok::<_, std::io::Error>(connection)))
    });
    Server::builder()
        .add_service(ForwardServer::new(Echo))
        .serve_with_incoming(incoming)
        .await
        .expect("connections never fail to be accepted");
}

fn address(host: Host) -> String {
    host.address(Plane::Peers).to_string()
}

async fn ask(network: Network, from: Host, to: Host, trace: Trace, answers: Arc<Mutex<u64>>) {
    let connector = tower::service_fn(move |_| {
        let network = network.clone();
        async move {
            let connection = network.dial(from, &address(to)).await?;
            Ok::<_, std::io::Error>(TokioIo::new(connection))
        }
    });
    let channel = Endpoint::from_shared(format!("http://{}", address(to)))
        .expect("an address")
        .connect_timeout(Duration::from_millis(300))
        .timeout(Duration::from_millis(400))
        .http2_keep_alive_interval(Duration::from_millis(200))
        .connect_with_connector_lazy(connector);
    loop {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let mut client = ForwardClient::new(channel.clone());
            let length = rand::random_range(1..50_000);
            calls.spawn(async move {
                let request = ForwardRequest {
                    envelope: None,
                    batch: vec![7; length].into(),
                };
                client.propose(request).await
            });
        }
        while let Some(answer) = calls.join_next().await {
            let code = answer
                .expect("a call")
                .map_or_else(|status| status.code(), |_| tonic::Code::Ok);
            trace.note(0, "answer", &[u64::from(to.0), code as u64], &[]);
            *answers.lock() += u64::from(code == tonic::Code::Ok);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Draws from everything that is random by nature, and reads all clocks.
async fn draw(trace: Trace) {
    let began = (Instant::now(), SystemTime::now());
    let (sender, _) = tokio::sync::watch::channel(0);
    for waiter in 0..16 {
        let (mut receiver, trace) = (sender.subscribe(), trace.clone());
        tokio::spawn(async move {
            while receiver.changed().await.is_ok() {
                trace.note(0, "watch", &[waiter], &[]);
            }
        });
    }
    for round in 0..100_u64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        sender.send_replace(round);
        let branch = tokio::select! {
            () = std::future::ready(()) => 0,
            () = std::future::ready(()) => 1,
            () = std::future::ready(()) => 2,
        };
        let order: HashMap<u64, ()> = (0..32).map(|key| (key, ())).collect();
        let first = order.keys().next().copied().unwrap_or_default();
        let drawn = rand::random::<u64>();
        let monotonic = u64::try_from(began.0.elapsed().as_micros()).unwrap_or(u64::MAX);
        let wall = began.1.elapsed().map_or(0, |passed| passed.as_micros());
        let tokio_ms = tokio::time::Instant::now()
            .duration_since(began.0.into())
            .as_millis();
        assert_eq!(u128::from(monotonic), tokio_ms * 1000, "clocks differ");
        assert_eq!(u128::from(monotonic), wall, "clocks differ");
        trace.note(monotonic, "drawn", &[branch, first, drawn], &[]);
    }
}
