//! The power-loss tool by hand: looks at, undoes or forgets what an undo
//! journal holds.

#![allow(clippy::print_stdout)] // it talks to a person

use std::process::ExitCode;

use quorate_disk_shim::{FaultyDisk, Names, PowerLoss, Variant};

const USAGE: &str = "\
quorate-disk-shim COMMAND --data FOLDER --journal FOLDER

  undo    [--seed N] [--variant V] [--names C]  make the power loss, then start the journal over
  status  [--seed N] [--variant V] [--names C]  say what it would do, and what the shim counted
  forget                                        take everything as durable
  library                                       print the path of the library to preload

V: none, all, N%, later, earlier, prefix, stale or torn; without it the seed decides
C: kept, lost or drawn (default)
Stop the programs that use the disk first. To run one on it:
  DISK_SHIM_DATA=FOLDER DISK_SHIM_JOURNAL=FOLDER LD_PRELOAD=$(quorate-disk-shim library) PROGRAM
";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run(mut arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let command = arguments.next().ok_or(USAGE)?;
    let (mut data, mut journal, mut seed, mut variant, mut names) = (None, None, 0_u64, None, Names::Drawn);
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("{name} needs a value\n\n{USAGE}"))?;
        match name.as_str() {
            "--data" => data = Some(value),
            "--journal" => journal = Some(value),
            "--seed" => seed = number(&value)?,
            "--variant" => variant = Some(value.parse()?),
            "--names" => names = value.parse()?,
            _ => return Err(format!("no option {name}\n\n{USAGE}")),
        }
    }
    if command == "library" {
        let path = quorate_disk_shim::library_path().map_err(|error| error.to_string())?;
        println!("{}", path.display());
        return Ok(());
    }
    let (Some(data), Some(journal)) = (data, journal) else {
        return Err(USAGE.into());
    };
    let variant = variant.unwrap_or_else(|| Variant::draw(seed));
    let disk = FaultyDisk::create(data, journal).map_err(|error| error.to_string())?;
    let plan = || PowerLoss::plan(disk.data(), disk.journal(), seed, variant, names);
    let done = match command.as_str() {
        "undo" => plan()
            .and_then(PowerLoss::undo)
            .map(|report| println!("{report}")),
        "status" => plan().and_then(|plan| {
            println!("seed {seed}, variant {variant}: {}", plan.report());
            let counters = disk.control()?.counters();
            counters
                .map(|counters| println!("{counters:?}"))
                .map_err(|source| quorate_disk_shim::Error::Io {
                    what: "read the counters".into(),
                    source,
                })
        }),
        "forget" => disk.forget_journal(),
        _ => return Err(format!("no command {command}\n\n{USAGE}")),
    };
    done.map_err(|error| error.to_string())
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|error| format!("--seed {text}: {error}"))
}
