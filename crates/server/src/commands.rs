//! What can be typed.

use std::path::Path;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use nix::sys::statvfs::statvfs;
use quorate_load::Size;
use quorate_load::bench::{BenchArgs, ROOM_FACTOR};
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

impl Cli {
    /// What was typed. Help, and what makes no sense, end the program here.
    pub(crate) fn from_command_line() -> Self {
        let matches = grouped(Self::command()).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Commands of this crate, by what they are for.
const NODE_COMMANDS: (&str, &[&str]) = ("Run nodes", &["serve", "dev", "demo", "bench"]);

/// The program with a help that shows commands by what they are for.
fn grouped(program: clap::Command) -> clap::Command {
    let width = program
        .get_subcommands()
        .map(|command| command.get_name().len())
        .max();
    let width = width.unwrap_or(0);
    let (header, literal) = (
        *program.get_styles().get_header(),
        *program.get_styles().get_literal(),
    );
    let mut commands = String::new();
    for (heading, names) in [NODE_COMMANDS].iter().chain(&quorate_cli::COMMAND_GROUPS) {
        commands.push_str(&format!("{header}{heading}:{header:#}\n"));
        for name in *names {
            let about = program.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            commands.push_str(&format!("  {literal}{name:width$}{literal:#}  {about}\n"));
        }
        commands.push('\n');
    }
    program.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}{header}Options:{header:#}\n{{options}}\n\n\
         `quorate COMMAND --help` has options and examples of a command.\n"
    ))
}

/// Nodes that are started for a bench.
const BENCH_NODES: u64 = 3;

/// `bench`: on the cluster that is named, or on one of its own.
pub(crate) async fn bench(args: BenchArgs) -> Result<(), Fatal> {
    let kept = if args.endpoint.is_empty() {
        // Where the nodes put their data.
        let dir = std::env::temp_dir();
        if let Some(needed) = args.room_needed(BENCH_NODES) {
            check_room(&dir, needed, free_bytes(&dir)?)?;
        }
        let cluster = Cluster::builder(BENCH_NODES as usize)
            .binary(this_program()?)
            .start()
            .await?;
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

/// A fill that the disk has no room for would end with three nodes that cannot be started again.
fn check_room(dir: &Path, needed: u64, free: u64) -> Result<(), Fatal> {
    if needed <= free {
        return Ok(());
    }
    let about = |bytes: u64| match bytes >> 20 {
        mib if mib < 10 << 10 => Size(mib << 20),
        mib => Size(mib >> 10 << 30),
    };
    Err(Fatal::usage(format!(
        "the fill may need {} in {} ({BENCH_NODES} nodes × messages × bytes of one × {ROOM_FACTOR}), and {} are free: fill less, \
         let TMPDIR be on another disk, or say --force",
        about(needed),
        dir.display(),
        about(free),
    )))
}

/// What is left on the disk of a directory for who is not root.
fn free_bytes(dir: &Path) -> Result<u64, Fatal> {
    let disk = statvfs(dir).map_err(|error| {
        Fatal::new(
            Exit::Failed,
            format!("look at the disk of {}: {error}", dir.display()),
        )
    })?;
    Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

/// The binary that the nodes of `dev`, `demo` and `bench` run.
pub(crate) fn this_program() -> Result<std::path::PathBuf, Fatal> {
    std::env::current_exe().map_err(|error| Fatal::new(Exit::Failed, format!("find this program: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_that_has_no_room_is_refused_with_what_to_do() {
        let dir = Path::new("somewhere");
        assert!(check_room(dir, 5 << 30, 5 << 30).is_ok());
        let refused = check_room(dir, 900 << 30, 79 << 30).expect_err("there is no room");
        let told = refused.to_string();
        for part in [
            "900GiB in somewhere",
            "79GiB are free",
            "--force",
            "TMPDIR",
            "3 nodes",
        ] {
            assert!(told.contains(part), "{part} in {told}");
        }
    }

    #[test]
    fn every_command_is_in_the_help_under_what_it_is_for() {
        let program = Cli::command();
        let groups = [NODE_COMMANDS].into_iter().chain(quorate_cli::COMMAND_GROUPS);
        let mut grouped_names: Vec<_> = groups.flat_map(|(_, names)| names).copied().collect();
        let mut names: Vec<_> = program.get_subcommands().map(clap::Command::get_name).collect();
        grouped_names.sort_unstable();
        names.sort_unstable();
        assert_eq!(grouped_names, names);

        let help = grouped(program.clone()).render_help().to_string();
        let line = "  trace        Where is my message? What happened to it, and when";
        let heading = help.find("\nLook and operate:\n").expect("there is a heading");
        let place = help.find(line).expect("there is a line for each command");
        let next = help.find("\nCluster:\n").expect("there is a heading");
        assert!(heading < place && place < next, "{help}");
    }
}
