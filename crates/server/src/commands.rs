//! What can be typed.

use clap::{Parser, Subcommand};
use quorate_load::bench::BenchArgs;
use quorate_test_cluster::Cluster;

use crate::build_info;
use crate::config::ServeArgs;
use crate::demo::DemoArgs;
use crate::dev::DevArgs;
use crate::exit::{Exit, Fatal};

/// A message broker that keeps its promises while machines die.
#[derive(Debug, Parser)]
#[command(name = "quorate", version = build_info::VERSION, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one node
    Serve(Box<ServeArgs>),
    /// Run three nodes on this machine until Ctrl-C
    Dev(DevArgs),
    /// Kill the leader of three nodes under load, and show that nothing is lost
    Demo(DemoArgs),
    /// Measure a cluster, and check that it loses nothing meanwhile
    Bench(BenchArgs),
    #[command(flatten)]
    Operator(quorate_cli::Command),
}

/// `bench`: on the cluster that is named, or on one of its own.
pub(crate) async fn bench(args: BenchArgs) -> Result<(), Fatal> {
    let kept = if args.endpoint.is_empty() {
        let cluster = Cluster::builder(3).binary(this_program()?).start().await?;
        let processes: Vec<_> = (0..cluster.node_count())
            .filter_map(|node| cluster.process_id(node))
            .collect();
        quorate_load::bench::run(&args, cluster.endpoints(), &processes).await?
    } else {
        quorate_load::bench::run(&args, args.endpoint.clone(), &[]).await?
    };
    if kept {
        Ok(())
    } else {
        Err(Fatal::new(
            Exit::Failed,
            "the cluster broke a promise: see what was checked",
        ))
    }
}

/// The binary that the nodes of `dev`, `demo` and `bench` run.
pub(crate) fn this_program() -> Result<std::path::PathBuf, Fatal> {
    std::env::current_exe().map_err(|error| Fatal::new(Exit::Failed, format!("find this program: {error}")))
}
