//! Writes the seeds of every target into a folder. cargo-fuzz starts from these files.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        leasehold_ycsb::note!("usage: fuzz FOLDER");
        return ExitCode::FAILURE;
    };
    match write(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            leasehold_ycsb::note!("fuzz: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &std::path::Path) -> std::io::Result<()> {
    for target in leasehold_fuzz::TARGETS {
        let folder = folder.join(target.name);
        std::fs::create_dir_all(&folder)?;
        let known = leasehold_fuzz::regressions(target.name)?;
        for (number, seed) in (target.seeds)().into_iter().chain(known).enumerate() {
            std::fs::write(folder.join(format!("seed-{number:03}")), seed)?;
        }
        leasehold_ycsb::say!("{}", target.name);
    }
    Ok(())
}
