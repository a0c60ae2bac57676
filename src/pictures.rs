//! Drawing of plots as PNG and PDF next to their SVG, on request (`--pictures`).

use std::path::Path;

use clap::Args;

#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Pictures {
    /// Draws each plot as PNG and PDF, too: in programs built with `--features pictures`
    #[arg(long)]
    pictures: bool,
}

impl Pictures {
    /// Returns an error if PNG and PDF files are requested and this program cannot draw them.
    pub fn check(self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.pictures || cfg!(feature = "pictures"),
            "--pictures: this program was built without them; build it with `cargo build --release \
             --features pictures`"
        );
        Ok(())
    }

    /// Draws the plots in `dir` and its subdirectories as PNG and PDF, if these are requested.
    pub fn draw(self, dir: &Path) -> anyhow::Result<()> {
        self.check()?;
        #[cfg(feature = "pictures")]
        if self.pictures && dir.exists() {
            return leasehold_geo_deploy::pictures::draw_all(dir);
        }
        _ = dir;
        Ok(())
    }
}
