//! One run of a schedule on a layer, stored and judged.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use jepsen_lite_core::cluster::Cluster;
use jepsen_lite_core::judge::judge;
use jepsen_lite_core::run::Run;
use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_core::verdict::{Results, Verdict};
use jepsen_lite_processes::containers::engine::Engine;
use jepsen_lite_processes::containers::{self, Containers, image};
use jepsen_lite_processes::machines::{Machines, Plan};
use jepsen_lite_sim::fleet;
use jepsen_lite_sim::run::Order;
use jepsen_lite_workload::access::Access;
use jepsen_lite_workload::generate::Layer;
use jepsen_lite_workload::recorder::Recorder;
use jepsen_lite_workload::{repeat, trial};
use tokio::runtime::Runtime;

use crate::voice::Voice;
use crate::{folder, live};

/// Real time that one simulated run may take: it takes a second or two, and much more in a debug build.
pub(crate) const SIMULATION_LIMIT: Duration = Duration::from_secs(300);
/// The images of containers.
const IMAGE: &str = "quorate:jepsen-lite";
const IMAGE_NEXT: &str = "quorate:jepsen-lite-next";
/// Memory of a container.
const MEMORY: &str = "1g";

/// A layer on which schedules can be carried out.
#[derive(Debug)]
pub(crate) enum Ground {
    /// Simulated worlds, each in a process of its own.
    Simulation,
    /// Processes of this binary.
    Processes { runtime: Runtime, binary: PathBuf },
    /// Containers under this engine.
    Containers { runtime: Runtime, engine: Engine },
}

impl Ground {
    /// Makes ready what a layer needs: the server is built if it has to be, and its image.
    ///
    /// # Errors
    ///
    /// When this machine cannot do it.
    pub(crate) fn prepare(layer: Layer) -> Result<Self> {
        if layer == Layer::Simulation {
            return Ok(Self::Simulation);
        }
        // Building takes minutes, and cargo is told to be quiet.
        eprintln!("making ready: the server is built if it is missing or older than its sources");
        let binary = quorate_test_cluster::find_binary()
            .context("no server to run: `cargo build --release -p quorate-server` makes one, QUORATE_BIN names another")?;
        let runtime = Runtime::new().context("start a runtime")?;
        if layer == Layer::Processes {
            return Ok(Self::Processes { runtime, binary });
        }
        let engine = runtime.block_on(async {
            let engine = Engine::find().await?;
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            image::build(&engine, &root, &binary, IMAGE).await?;
            image::tag(&engine, IMAGE, IMAGE_NEXT).await?;
            anyhow::Ok(engine)
        })?;
        Ok(Self::Containers { runtime, engine })
    }

    /// Carries out a schedule, stores the run in a folder that exists, and says what it came to. With a voice, it
    /// tells meanwhile how it goes.
    ///
    /// # Errors
    ///
    /// When the harness failed.
    pub(crate) fn carry_out(
        &self,
        schedule: &Schedule,
        folder: &Path,
        voice: Option<Voice>,
    ) -> Result<Results> {
        let (mut run, layer) = match self {
            Self::Simulation => {
                let order = Order {
                    folder: Some(folder.to_owned()),
                    ..Order::new(schedule.clone())
                };
                let results = fleet::in_a_process(&order, SIMULATION_LIMIT)?.results;
                folder::pages(folder, &Run::read(folder)?, &results)?;
                return Ok(results);
            }
            Self::Processes { runtime, binary } => {
                let run = runtime.block_on(Box::pin(on_processes(schedule, folder, binary, voice)))?;
                (run, Layer::Processes)
            }
            Self::Containers { runtime, engine } => {
                let run = runtime.block_on(Box::pin(in_containers(schedule, folder, engine, voice)))?;
                (run, Layer::Containers)
            }
        };
        run.facts.repeat = repeat::command(schedule, layer, Some(folder));
        let results = judge(&run);
        folder::store(folder, &run, &results)?;
        Ok(results)
    }
}

async fn on_processes(
    schedule: &Schedule,
    folder: &Path,
    binary: &Path,
    voice: Option<Voice>,
) -> Result<Run> {
    let plan = Plan {
        nodes: schedule.nodes,
        settings: schedule.settings.clone(),
        folder: folder.to_owned(),
        binary: Some(binary.to_owned()),
        other_binary: None,
    };
    let mut machines = Machines::start(&plan).await.context("start a cluster")?;
    let access = Access::tcp(machines.endpoints());
    let mut run = Box::pin(conduct(schedule, &mut machines, &access, voice)).await?;
    machines.complete(&mut run).await?;
    Ok(run)
}

async fn in_containers(
    schedule: &Schedule,
    folder: &Path,
    engine: &Engine,
    voice: Option<Voice>,
) -> Result<Run> {
    let mut settings = schedule.settings.clone();
    settings.insert("audit-file".to_owned(), "/var/lib/quorate/audit.jsonl".to_owned());
    let settings = containers::Settings {
        nodes: schedule.nodes,
        image: IMAGE.to_owned(),
        image_next: Some(IMAGE_NEXT.to_owned()),
        memory: MEMORY.to_owned(),
        settings,
    };
    let mut cluster = Containers::start(engine.clone(), settings)
        .await
        .context("start a cluster")?;
    let access = Access::tcp(cluster.endpoints());
    // Processes end with this one; containers would go on.
    let run = tokio::select! {
        run = Box::pin(conduct(schedule, &mut cluster, &access, voice)) => Some(run?),
        _ = tokio::signal::ctrl_c() => None,
    };
    let Some(mut run) = run else {
        cluster.down().await?;
        eprintln!("interrupted: the containers are gone");
        std::process::exit(Verdict::Harness.exit_code().into());
    };
    cluster.complete(&mut run, folder).await?;
    Ok(run)
}

/// The course of a run, told as it goes.
async fn conduct<C: Cluster>(
    schedule: &Schedule,
    cluster: &mut C,
    access: &Access,
    voice: Option<Voice>,
) -> Result<Run> {
    let recorder = Recorder::default();
    let tell = async {
        match voice {
            Some(voice) => live::tell(schedule, &recorder, access, voice).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        run = Box::pin(trial::conduct_before(&recorder, schedule, cluster, access)) => run,
        () = tell => bail!("whoever tells how it goes has ended"),
    }
}

/// Removes the folder of a run that is not kept.
///
/// # Errors
///
/// When it cannot be removed.
pub(crate) fn forget(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))
}
