//! Judges stored runs again, without their cluster: `check FOLDER..`. Exits with the gravest verdict's code.

#![allow(clippy::print_stdout)] // a program that talks to a person

use std::path::Path;
use std::process::ExitCode;

use jepsen_lite_core::judge::judge;
use jepsen_lite_core::run::Run;
use jepsen_lite_core::verdict::Verdict;

fn main() -> anyhow::Result<ExitCode> {
    let mut gravest = Verdict::Valid;
    for folder in std::env::args().skip(1) {
        let results = judge(&Run::read(Path::new(&folder))?);
        println!("{}: {folder}", results.verdict);
        for finding in &results.findings {
            println!(
                "  {:4} {:28} {:9} {:8} checked",
                finding.invariant,
                finding.name,
                finding.verdict.to_string(),
                finding.checked
            );
            for witness in &finding.witnesses {
                println!("         {}", witness.evidence);
            }
        }
        for note in &results.notes {
            println!("  {note}");
        }
        gravest = gravest.max(results.verdict);
    }
    Ok(ExitCode::from(gravest.exit_code()))
}
