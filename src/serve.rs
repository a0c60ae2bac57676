//! `leasehold serve`.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use server::node::{ClusterConfig, ServeOptions, serve_until, terminated};

#[derive(Args)]
pub struct ServeArgs {
    /// The cluster's configuration (TOML); the same file serves every node
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Which node of it this is
    #[arg(long, value_name = "NAME")]
    node: String,
    /// Appends elections, configurations and the like to FILE, one JSON object a line
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Ends when standard input is closed: for processes that start replicas
    #[arg(long)]
    until_stdin_closes: bool,
}

pub fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let _log = crate::terminal::log();
    let config = ClusterConfig::load(&args.config)?;
    let options = ServeOptions {
        events: args.events.clone(),
    };
    let watch = args.until_stdin_closes;
    serve_until(&config, &args.node, &options, move || async move {
        if !watch {
            return terminated().await;
        }
        let (closed, wait) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            let _ = closed.send(());
        });
        tokio::select! {
            signal = terminated() => signal,
            _ = wait => Ok(()),
        }
    })
    .with_context(|| format!("node {}", args.node))
}
