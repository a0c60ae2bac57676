//! `leasehold plot`.

use std::path::{Path, PathBuf};

use clap::Args;
use leasehold_geo_deploy::report::{NamedLogs, plot};

use crate::pictures::Pictures;
use crate::terminal::say;

const EXAMPLES: &str = "\
Examples:
  leasehold ycsb run -P workloada -s -p hdrhistogram.fileoutput=true \\
      -p hdrhistogram.output.path=run/ -p status.interval=1 --address 127.0.0.1:7001 --ca ca.pem
  leasehold plot run/latency.hlog                  leaves plots/timeline.svg, cdf.svg, ...
  leasehold plot gen1/latency.hlog gen2/latency.hlog     two load generators of one run
  leasehold plot LL=ll/latency.hlog QL=ql/latency.hlog   two runs, compared
  leasehold plot run/latency.hlog --out pictures   leaves them in another folder";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PlotArgs {
    /// Interval logs (.hlog), or NAME=FILE. Files of the same name, or without one, are load
    /// generators of one run and are merged; runs of different names are compared
    #[arg(required = true, value_name = "[NAME=]FILE")]
    logs: Vec<String>,
    /// Where the drawings go, as SVG
    #[arg(long, value_name = "DIR", default_value = "plots")]
    out: PathBuf,
    #[command(flatten)]
    pictures: Pictures,
}

pub fn run(args: &PlotArgs) -> anyhow::Result<()> {
    args.pictures.check()?;
    let mut runs: Vec<NamedLogs> = Vec::new();
    for log in &args.logs {
        let (name, file) = named(log);
        match runs.iter_mut().find(|(other, _)| *other == name) {
            Some((_, files)) => files.push(file),
            None => runs.push((name, vec![file])),
        }
    }
    let names = plot(&runs, &args.out)?;
    args.pictures.draw(&args.out)?;
    let (panels, drawings): (Vec<String>, Vec<String>) =
        names.into_iter().partition(|name| name.contains('/'));
    for name in drawings {
        say!("{}", args.out.join(format!("{name}.svg")).display());
    }
    if !panels.is_empty() {
        let folder = args.out.join("panels");
        say!("{} (each panel alone)", folder.display());
    }
    Ok(())
}

/// Splits `NAME=FILE` into the name and the file. The name is empty in two cases: the text contains
/// no name, or the whole text is the path of an existing file.
fn named(log: &str) -> (String, PathBuf) {
    match log.split_once('=') {
        Some((name, file)) if !Path::new(log).exists() => (name.to_owned(), PathBuf::from(file)),
        _ => (String::new(), PathBuf::from(log)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_stand_before_a_file() {
        assert_eq!(
            named("QL=a/b.hlog"),
            ("QL".to_owned(), PathBuf::from("a/b.hlog"))
        );
        assert_eq!(
            named("a/b.hlog"),
            (String::new(), PathBuf::from("a/b.hlog"))
        );
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a=b.hlog");
        std::fs::write(&odd, "").unwrap();
        let odd = odd.to_str().unwrap();
        assert_eq!(named(odd), (String::new(), PathBuf::from(odd)));
    }
}
