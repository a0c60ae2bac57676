//! `leasehold cert`.

use std::path::{Path, PathBuf};

use clap::Args;
use leasehold_node::ClusterConfig;
use leasehold_node::config::Identity;
use leasehold_node::security::{
    AUTHORITY, AUTHORITY_KEY, CertificateDirectory, CertificateOutcome, CertificateSpec,
    authority_pem, day, issue_certificates,
};

use crate::terminal::say;

const HELP: &str = "\
DIR gets ca.pem and ca.key, the certificate and the key of the cluster's authority, and NAME.pem and \
NAME.key for each node of the configuration. What is there stays as it is. If a node is added to the \
configuration before the first start of the cluster, the same command makes what it needs. Then:

1. Copy ca.pem, NAME.pem and NAME.key to DIR at the host of node NAME, and nothing else. The key's \
mode must be 0600.
2. Keep ca.key away from the nodes: whoever has it can pass for any of them.
3. Say it in the configuration of every node, relative to that file or absolute:

     [security]
     certificates = \"DIR\"

4. Give ca.pem to clients: --ca FILE, or the environment's LEASEHOLD_CA.

Nodes warn in their log from 30 days before their certificate expires. `leasehold cert DIR --config \
FILE --renew` makes new ones; a node uses them without a restart once they were copied.

A certificate holds no address, so nodes may move. Certificates of other authorities do, too, if they \
hold the DNS names that --names prints.

Without an authority: the same file of random bytes, mode 0600, at every node, and \
[security] secret = \"FILE\". Clients then need what `leasehold cert --print-ca --config FILE` prints.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct CertArgs {
    /// Where the certificates are, or are to be
    #[arg(value_name = "DIR", required_unless_present_any = ["print_ca", "names"])]
    directory: Option<PathBuf>,
    /// The cluster's configuration: its name and those of its nodes count
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// For how many days new certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 825, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
    /// Makes new certificates for all nodes, also for those that have one
    #[arg(long)]
    renew: bool,
    /// Prints the authority's certificate that the configuration names, or that its shared secret
    /// stands for, and makes nothing
    #[arg(long, conflicts_with_all = ["directory", "renew", "names"])]
    print_ca: bool,
    /// Prints the DNS names that each node's certificate must hold, and makes nothing
    #[arg(long, conflicts_with_all = ["directory", "renew"])]
    names: bool,
}

pub fn run(args: &CertArgs) -> anyhow::Result<()> {
    let config = ClusterConfig::load(&args.config)?;
    let nodes = config.names();
    if args.names {
        for node in &nodes {
            let names = leasehold_transport::tls::names::all(&config.cluster, node);
            say!("{node}: {}", names.join(" "));
        }
        return Ok(());
    }
    let Some(directory) = args.directory.as_deref() else {
        say!("{}", authority_pem(&config)?.trim_end());
        return Ok(());
    };
    let made = issue_certificates(&CertificateSpec {
        directory,
        cluster: &config.cluster,
        nodes: &nodes,
        days: args.days,
        renew: args.renew,
    })?;
    print_result(directory.display(), &made);
    if config.security.identity == Identity::None {
        say!(
            "Then add to {}, at every node:\n\n  [security]\n  certificates = \"{}\"",
            args.config.display(),
            as_configured(directory, &args.config).display()
        );
    }
    Ok(())
}

/// Returns the path of `directory` that must be written in the configuration file `config`. Paths
/// in a configuration are relative to the directory that contains the configuration.
fn as_configured(directory: &Path, config: &Path) -> PathBuf {
    let base = config.parent().filter(|base| !base.as_os_str().is_empty());
    let base = base.unwrap_or(Path::new(".")).canonicalize();
    let (Ok(directory), Ok(base)) = (directory.canonicalize(), base) else {
        return directory.to_owned();
    };
    match directory.strip_prefix(base) {
        Ok(inside) if inside.as_os_str().is_empty() => PathBuf::from("."),
        Ok(inside) => inside.to_owned(),
        Err(_) => directory,
    }
}

fn print_result(directory: impl std::fmt::Display, made: &CertificateDirectory) {
    if made.is_new {
        say!("{directory}: a new authority. Keep {AUTHORITY_KEY} away from the nodes.");
    }
    for (node, what, expires) in &made.nodes {
        let what = match what {
            CertificateOutcome::New => "new",
            CertificateOutcome::Kept => "kept",
            CertificateOutcome::Renewed => "renewed",
        };
        say!("{node}: {what}, valid until {}", day(*expires));
    }
    say!(
        "Copy {AUTHORITY}, NAME.pem and NAME.key to the host of node NAME, and {AUTHORITY} to clients."
    );
}
